"""Commands that messages name are valid: each is parsed by the command line that it is meant for."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from chiplog_cli.root import chiplog
from tests.support.packages import PACKAGES
from tests.support.safeguard import proves


def texts_of(path: Path) -> Iterator[str]:
    """Yield the texts of a module that are no docstrings, with {} for what is filled in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    skipped = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and _has_doc(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value


def _has_doc(node: ast.AST) -> bool:
    return ast.get_docstring(node) is not None


def hints_in(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in a text: its name, and the arguments that follow up to the first plain word."""
    argument = r"-[^\s;,)`'\"]+|\{\w*\}|[A-Z]+\b"
    for found in re.finditer(rf"\bchiplog ([a-z]+)((?: [a-z]+)?(?: (?:{argument}))*)", text):
        words = [found[1], *re.sub(r"\{\w*\}", "X", found[2]).split()]
        # What follows `--` is another program's command line.
        yield [*words, "X"] if words[-1] == "--" and text[found.end() :].strip() else words


def refusal_of(words: list[str]) -> str | None:
    """Return why a command cannot be run; None if it can, or if only its name is given."""
    context = click.Context(chiplog, info_name="chiplog")
    command = chiplog.get_command(context, words[0])
    arguments = words[1:]
    if command is None:
        return f"there is no command {words[0]!r}" if any(word.startswith("-") for word in arguments) else None
    if isinstance(command, click.Group) and arguments:
        command, arguments = command.get_command(context, arguments[0]) or command, arguments[1:]
    elif arguments and arguments[0].isalpha() and arguments[0].islower():
        arguments = arguments[1:]  # prose: `chiplog up delivers them`
    if not arguments or "--help" in arguments:
        return None
    try:
        command.make_context(words[0], arguments, parent=context)
    except click.MissingParameter as error:
        return error.format_message()
    except (click.BadOptionUsage, click.BadParameter):
        return None  # the last option's value is a plain word, which is not copied; X is an example of a value
    except click.UsageError as error:
        return error.format_message()
    return None


@proves(
    "named-command-complete",
    "a command that a message names has the arguments that it needs",
    part="chiplog down",
    new="chiplog logs --follow",
)
def test_each_command_that_a_message_names_is_valid() -> None:
    checked = 0
    for package in PACKAGES.values():
        for path in sorted(package.rglob("*.py")):
            for text in texts_of(path):
                for words in hints_in(text):
                    checked += len(words) > 1
                    assert refusal_of(words) is None, f"{path}: chiplog {' '.join(words)}: {refusal_of(words)}"
    assert checked > 10


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ("new lines: chiplog logs --follow", False),
        ("3 more: chiplog show {} --all", True),
        ("run chiplog keys allow {file} there", True),
        ("chiplog doctor --canaries", False),
        ("chiplog up delivers them", True),
        ("chiplog bogus --fast", False),
        ("see chiplog keys --help", True),
    ],
)
def test_wrong_hints_are_noticed(text: str, is_valid: bool) -> None:
    assert all(refusal_of(words) is None for words in hints_in(text)) is is_valid
