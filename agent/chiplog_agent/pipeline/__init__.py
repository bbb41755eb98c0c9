"""From ranks to the collector: batches, spool, files."""
