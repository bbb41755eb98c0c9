"""Record runs."""
