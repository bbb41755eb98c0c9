"""Exports: directories that hold one run each, complete and readable by other tools."""
