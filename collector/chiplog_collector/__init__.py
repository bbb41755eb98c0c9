"""The collector, which merges all streams: a receiver that logs and acknowledges, and an index that answers SQL."""
