"""The page's HTTP API: docs/reference/page-api.md."""
