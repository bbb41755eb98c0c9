"""Files: records, segments, journals, contents, and how far they are synced."""
