"""`python -m chiplog_collector`: the same as `chiplog collector`."""

from chiplog_collector.cli import collector

collector(prog_name="chiplog collector")
