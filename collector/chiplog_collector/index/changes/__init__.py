"""Changes that clients ask for: planned as records, and answered once they are applied."""
