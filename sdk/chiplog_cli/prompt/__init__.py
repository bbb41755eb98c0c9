"""The prompt of chiplog sql."""
