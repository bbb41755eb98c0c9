"""Move and keep data."""
