"""Questions in SQL, on the wire."""
