"""The command line. It imports only click; each command imports what it needs when it is called."""

from chiplog_cli.root import main

__all__ = ["main"]
