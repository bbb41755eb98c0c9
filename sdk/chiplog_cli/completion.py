"""`chiplog completion`, and the words that a shell completes: runs, keys, labels, columns.

A shell asks by starting `chiplog` once per Tab. An answer is bounded in time; whatever goes wrong is no suggestion.
"""

import contextlib
import logging
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_CHIPLOG_COMPLETE"  # click derives it from the program's name
ANSWER_S = 1.0  # a shell waits for it; starting Python and DuckDB takes half of that on a busy machine
WORDS_MAX = 100  # shells ask whether to list more
EXAMPLES = """\b
Once for each shell:
  bash: add to ~/.bashrc      eval "$(chiplog completion bash)"
  zsh:  add to ~/.zshrc       eval "$(chiplog completion zsh)"
  fish: run                   chiplog completion fish > ~/.config/fish/completions/chiplog.fish
"""
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@click.command(epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script with which a shell completes commands, options, runs, keys, labels and columns."""
    from chiplog_cli.root import chiplog

    found = get_completion_class(shell)
    assert found is not None, shell
    click.echo(found(chiplog, {}, "chiplog", VARIABLE).source())


def complete_run_ids(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the newest runs whose ID begins with a text."""
    query = (
        "SELECT run_id, state FROM runs WHERE starts_with(run_id, $begun) "
        f"ORDER BY created_at DESC NULLS LAST LIMIT {WORDS_MAX}"
    )
    return [CompletionItem(run_id, help=state) for run_id, state in _ask(context, query, begun)]


def complete_runs(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the newest runs whose ID begins with a text, and `latest`."""
    words = complete_run_ids(context, parameter, begun)
    return [*words, CompletionItem("latest")] if "latest".startswith(begun) else words


def complete_keys(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the keys of the run in the command, or of all runs, that begin with a text."""
    query = "SELECT DISTINCT key FROM keys WHERE starts_with(key, $begun)"
    return _of_run(context, query, "key", begun)


def complete_media_keys(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the keys of histograms, texts and media that begin with a text."""
    of_media = "SELECT run_id, key FROM media WHERE kind <> 'mask'"
    found = f"SELECT run_id, key FROM histograms UNION ALL SELECT run_id, key FROM texts UNION ALL {of_media}"
    return _of_run(context, f"SELECT DISTINCT key FROM ({found}) WHERE starts_with(key, $begun)", "key", begun)


def complete_labels(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the labels of the run in the command that begin with a text."""
    return _of_run(context, "SELECT DISTINCT label FROM labels WHERE starts_with(label, $begun)", "label", begun)


def words_of_list(known: Callable[[], list[str]]) -> Complete:
    """Return a function that completes the last word of a list with commas."""

    def complete(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
        kept = begun[: begun.rfind(",") + 1]
        return [CompletionItem(kept + word) for word in known() if word.startswith(begun[len(kept) :])]

    return complete


def _of_run(context: click.Context, query: str, column: str, begun: str) -> list[CompletionItem]:
    run = context.params.get("run")
    if run and run != "latest":
        query += " AND starts_with(run_id, $run)"
    elif run == "latest":
        query += " AND run_id = (SELECT arg_max(run_id, created_at) FROM runs) AND $run = 'latest'"
    rows = _ask(context, f"{query} ORDER BY {column} LIMIT {WORDS_MAX}", begun, **({"run": run} if run else {}))
    return [CompletionItem(str(word)) for (word,) in rows]


def _ask(context: click.Context, query: str, begun: str, **params: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a query; none if it fails or takes longer than ANSWER_S. Starts no daemon."""
    from chiplog_client.client import connect

    source = {name: context.params.get(f"{name}_" if name == "dir" else name) for name in ("dir", "url")}
    logging.disable()
    try:
        with _time_limit(ANSWER_S), connect(source["url"], dir=source["dir"], start=False) as client:
            return client.sql(query, {"begun": begun, **params}, timeout_s=ANSWER_S).tuples()
    except Exception:  # safeguard: completion-is-silent
        return []  # a message would appear in the middle of the line that the user types


class _TooLateError(Exception):
    """The time for an answer is over."""


@contextlib.contextmanager
def _time_limit(limit_s: float) -> Iterator[None]:
    """Raise _TooLateError in this block after a time: a connection alone may wait for longer."""

    def end(_: int, __: FrameType | None) -> None:
        raise _TooLateError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limit_s)  # safeguard: completion-is-bounded
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
