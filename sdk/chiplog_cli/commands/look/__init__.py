"""Look at runs."""
