"""`python -m chiplog_agent`: the same as `chiplog agent`. Every failure is one line on stderr."""

import sys

import click

from chiplog_agent.cli import agent

try:
    agent.main(prog_name="chiplog agent", standalone_mode=False)
except click.ClickException as error:
    click.echo(f"chiplog agent: {' '.join(error.format_message().split())}", err=True)
    sys.exit(error.exit_code)
