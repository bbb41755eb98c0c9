"""Many runs: their table, their values as a few points each, the names of labels."""
