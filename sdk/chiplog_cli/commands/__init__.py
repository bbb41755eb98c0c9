"""The commands: a module for each, in the sections of chiplog --help."""
