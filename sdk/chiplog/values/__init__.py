"""Convert logged and configured values into plain values."""
