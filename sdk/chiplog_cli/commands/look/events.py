"""`chiplog events`: what happened in a run, the newest last."""

from collections.abc import Iterator
from typing import Any

import click
from click.core import ParameterSource

from chiplog_cli.commands.look.run_page import events_table
from chiplog_cli.completion import complete_labels, complete_runs
from chiplog_cli.options import local_option, open_client, require_label, resolve_run, source_options
from chiplog_cli.output import FORMATS, Output, output_options
from chiplog_cli.suggestions import require_known
from chiplog_cli.tables.fitted_table import Sheet
from chiplog_cli.tables.format_values import Zone, common_timezone
from chiplog_cli.tables.writers import Rows, write_result
from chiplog_client.reads.events import EVENTS_MAX, EventsRequest, read_event_nodes, read_events

_TYPES = {"ts": "TIMESTAMP", "label": "VARCHAR", "attempt": "INTEGER", "node": "VARCHAR", "kind": "VARCHAR"}
_TYPES |= {"level": "VARCHAR", "message": "VARCHAR", "body": "JSON"}


@click.command()
@click.argument("run", default="latest", shell_complete=complete_runs)
@click.option("--kind", default="", metavar="KIND", help="Only events of this kind, such as alert.")
@click.option("--level", default="", metavar="LEVEL", help="Only events of this level, such as error.")
@click.option("--label", "labels", multiple=True, metavar="NAME", shell_complete=complete_labels, help="Only of these.")
@click.option(
    "--node", default="", metavar="NODE", help="In place of RUN: of this node's agent and GPUs, without a run."
)
@click.option("-n", "--tail", "limit", type=click.IntRange(1, EVENTS_MAX), default=100, show_default=True, metavar="N")
@output_options(*FORMATS)
@local_option
@source_options
def events(
    run: str,
    kind: str,
    level: str,
    labels: tuple[str, ...],
    node: str,
    limit: int,
    output: Output,
    is_local: bool,
    dir_: str | None,
    url: str | None,
) -> None:
    """Print the last N events of a run: alerts, ends, restarts, refusals, losses, what GPUs reported.

    RUN is an ID, the beginning of one, a name, or `latest`, which is also the default.
    """
    is_given = click.get_current_context().get_parameter_source("run") is not ParameterSource.DEFAULT
    if node and (is_given or labels):
        raise click.UsageError("--node prints events that are of no run: leave out RUN and --label")
    zone = common_timezone(is_local)
    with open_client(dir_, url) as client:
        if node:
            require_known("node", node, read_event_nodes(client), "no event of it has arrived")
        run_id = node or resolve_run(client, run)
        for label in labels:
            require_label(client, run_id, label)
        found = read_events(client, EventsRequest(run_id, kind, level, labels, limit, is_node=bool(node)))
    for what, value in (("kind", kind), ("level", level)):
        known = sorted({row[what] for row in found["kinds"] if row[what]})
        if value:
            require_known(
                f"{what} of an event", value, known, f"{'node' if node else 'run'} {run_id!r} has no such event"
            )
    events = found["rows"][::-1]
    rows = Rows(list(_TYPES), ([row[name] for name in _TYPES] for row in events), _TYPES, ["ts"])
    write_result(rows, output, zone, ["body"], sheets=lambda: _sheets(events, zone))


def _sheets(events: list[dict[str, Any]], zone: Zone) -> Iterator[Sheet | str]:
    yield events_table(events, zone) or "no event"
