"""`chiplog edit`: change what describes a run."""

from typing import Any

import click

from chiplog_cli.completion import complete_run_ids
from chiplog_cli.options import echo_asked, open_client, require_exact_run, run_text, source_options

_COLUMNS = {"name": "name", "notes": "notes", "project": "project", "group": "run_group", "job_type": "job_type"}


@click.command()
@click.argument("run", shell_complete=complete_run_ids)
@click.option("--name", help="A name for people.")
@click.option("--notes", help="A text about the run.")
@click.option("--tags", metavar="A,B,…", help="Replace the tags.")
@click.option("--add-tag", "added", multiple=True, metavar="TAG", help="Add a tag; may be repeated.")
@click.option("--remove-tag", "removed", multiple=True, metavar="TAG", help="Remove a tag; may be repeated.")
@click.option("--project", help="Move the run to a project.")
@click.option("--group", help="Move the run to a group.")
@click.option("--job-type", help="What its job is.")
@source_options
def edit(
    run: str,
    tags: str | None,
    added: tuple[str, ...],
    removed: tuple[str, ...],
    dir_: str | None,
    url: str | None,
    **texts: str | None,
) -> None:
    """Change name, notes, tags, project, group or job type of a run; an empty text clears one.

    RUN is an ID. What you set stays, also when a process of the run reports another value later.
    """
    fields: dict[str, Any] = {name: text or None for name, text in texts.items() if text is not None}
    if tags is not None and (added or removed):
        raise click.UsageError("--tags replaces all tags; give it alone, or --add-tag and --remove-tag")
    if not (fields or tags is not None or added or removed):
        raise click.UsageError("nothing to change; give --name, --notes, --tags, --project, --group or --job-type")
    with open_client(dir_, url) as client:
        run = require_exact_run(client, run)  # safeguard: edit-needs-exact-id
        query = "SELECT name, notes, tags, project, run_group, job_type FROM runs WHERE run_id = $run"
        rows = client.sql(query, {"run": run}).rows()
        if not rows:
            raise click.ClickException(f"run {run!r} was deleted just now")
        before = rows[0]
        if tags is not None or added or removed:
            old = list(before["tags"] or [])
            fields["tags"] = _tags_of(tags) if tags is not None else _changed_tags(run, old, added, removed)
        done = client.edit_run(run, **fields)
    for name, value in fields.items():
        was = _text(before[_COLUMNS.get(name, name)])
        click.echo(f"{run_text(run, before['name'])}: {name} {was} → {_text(value)}")
    echo_asked(done.get("asked"))


def _tags_of(text: str) -> list[str]:
    return list(dict.fromkeys(tag.strip() for tag in text.split(",") if tag.strip()))


def _changed_tags(run: str, tags: list[str], added: tuple[str, ...], removed: tuple[str, ...]) -> list[str]:
    """Return the tags after additions and removals. Raises UsageError if the run does not have a tag to remove."""
    for tag in removed:
        if tag not in tags:
            has = f"it has {', '.join(tags)}" if tags else "it has none"
            raise click.UsageError(f"run {run!r} has no tag {tag!r}; {has}")
    return list(dict.fromkeys([*(tag for tag in tags if tag not in removed), *added]))


def _text(value: Any) -> str:
    return "none" if value in (None, []) else ", ".join(value) if isinstance(value, list) else repr(str(value))
