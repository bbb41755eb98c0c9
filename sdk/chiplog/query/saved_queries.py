"""The saved queries: SQL files of this package for the usual views of a run, each with the parameter `$run`."""

from importlib.resources import files

NAMES = ("primary", "failed", "all")


def query_of(name: str) -> str:
    """Return the text of a saved query. Raises KeyError for a name that is not in NAMES."""
    if name not in NAMES:
        raise KeyError(name)
    return (files("chiplog.query") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


def about(name: str) -> str:
    """Return what a saved query shows: its first line."""
    return query_of(name).partition("\n")[0].removeprefix("-- ")
