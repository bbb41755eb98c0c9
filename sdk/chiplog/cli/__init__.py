"""The command line. Importing it costs click; each command imports what it needs when it is called."""

from chiplog.cli.root import main

__all__ = ["main"]
