"""Bad input that names something unknown: one line with the nearest known names."""

from collections.abc import Iterable

import click

from chiplog_client.nearest_names import unknown_name


def require_known(what: str, name: str, known: Iterable[str], remedy: str) -> None:
    """Raise UsageError with the nearest names unless `name` is known. Arguments as of `unknown_name`."""
    names = list(known)
    if name not in names:
        raise click.UsageError(unknown_name(what, name, names, remedy))
