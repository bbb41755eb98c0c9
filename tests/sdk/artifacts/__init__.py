"""Tests of chiplog.artifacts."""
