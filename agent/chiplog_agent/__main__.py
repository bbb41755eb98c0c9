"""`python -m chiplog_agent`: the same as `chiplog agent`."""

from chiplog_agent.cli import agent

agent(prog_name="chiplog agent")
