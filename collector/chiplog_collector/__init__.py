"""The one place where all streams meet: a receiver that takes, logs and acknowledges, an index that answers SQL."""
