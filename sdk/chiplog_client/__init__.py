"""The client: SQL over runs, and what reads, moves and serves their data. It imports nothing that records."""
