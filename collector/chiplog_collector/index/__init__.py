"""The process that applies the log to DuckDB."""
