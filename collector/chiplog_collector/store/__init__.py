"""Publish what the index holds to Delta tables: pieces cut by the index, an outbox, a process that commits them."""
