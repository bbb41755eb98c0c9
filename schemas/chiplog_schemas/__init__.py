"""What rank, agent and collector agree on: records, events, blocks, delivery, tables. Knows none of the three."""
