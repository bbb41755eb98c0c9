"""One SQL over a collector's own rows and those of a store: of other collectors, and of days that have left DuckDB."""
