"""Runs that other libraries recorded, as exports of chiplog."""
