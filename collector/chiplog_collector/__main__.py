"""`python -m chiplog_collector`: the same as `chiplog collector`. Every failure is one line on stderr."""

import sys

import click

from chiplog_collector.cli import collector

try:
    collector.main(prog_name="chiplog collector", standalone_mode=False)
except click.ClickException as error:
    click.echo(f"chiplog collector: {' '.join(error.format_message().split())}", err=True)
    sys.exit(error.exit_code)
