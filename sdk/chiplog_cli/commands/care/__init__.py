"""Take care."""
