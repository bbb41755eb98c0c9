"""The screen of chiplog top."""
