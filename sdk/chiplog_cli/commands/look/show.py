"""`chiplog show`: one run on a page."""

import click

from chiplog_cli.commands.look.run_page import build_page
from chiplog_cli.completion import complete_runs
from chiplog_cli.options import local_option, open_client, resolve_run, source_options
from chiplog_cli.output import Output, output_options
from chiplog_cli.tables.format_values import common_timezone
from chiplog_cli.tables.writers import write_object, write_sheets
from chiplog_client.reads.media.run_contents import read_artifacts, read_media_keys
from chiplog_client.reads.run_report import read_run
from chiplog_client.reads.run_verdict import read_verdict


@click.command()
@click.argument("run", default="latest", shell_complete=complete_runs)
@output_options("table", "json", "md")
@click.option("--all", "everything", is_flag=True, help="All labels, metrics, config, files: more than a screen.")
@local_option
@source_options
def show(run: str, output: Output, everything: bool, is_local: bool, dir_: str | None, url: str | None) -> None:
    """Show one run: its labels, how far they are and how they ended, alerts, time per phase, metrics, config, files,
    media, artifacts.

    `verdict` says who failed first, which rank was slow, in which phase, and who waited for it.

    RUN is an ID, the beginning of one, a name, or `latest`, which is also the default. Of many labels the failed ones
    come first, then those that are behind or silent for longest; the others are counted. json has one object with
    everything about it.

    Of a phase, `mean` is its seconds in all labels divided by its number of steps in all labels; `slowest label` is the
    label whose own mean is the largest, with that mean.
    """
    zone = common_timezone(is_local)
    source = [f"--{name}={value}" for name, value in (("dir", dir_), ("url", url)) if value]
    with open_client(dir_, url) as client:
        run_id = resolve_run(client, run)
        found = read_run(client, run_id)
        if found is None:
            raise click.ClickException(f"run {run_id!r} was deleted; chiplog runs lists all")
        found |= {"media": read_media_keys(client, run_id), "artifacts": read_artifacts(client, run_id)}
        verdict = read_verdict(client, run_id, report=found)
    found["verdict"] = {name: value for name, value in verdict.items() if name not in ("parts", "others")}
    if output.form == "json":
        write_object(found, output.path, zone)
    else:
        write_sheets(build_page(found, everything=everything, zone=zone, source=source), output)
