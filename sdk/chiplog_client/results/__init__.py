"""Results of queries: as Python values, Arrow, pandas or Polars, whole or batch by batch."""
