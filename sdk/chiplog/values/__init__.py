"""Conversion of what users log and configure into plain values."""
