"""Curves as pictures, in a terminal or in a file."""
