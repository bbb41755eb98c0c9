"""A config as a file."""

import builtins
from pathlib import Path
from typing import Any

import pytest

from chiplog.integrations.wandb.state.config_file import read_config


def test_entries_are_plain_or_have_values_and_descriptions(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("wandb_version: 1\nlr:\n  value: 0.1\n  desc: null\ndepth: 2\nmodel: {value: 1, width: 3}\n")
    assert read_config(path, pytest.fail) == {"lr": 0.1, "depth": 2, "model": {"value": 1, "width": 3}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: [Errno 2] No such file or directory"),
        ("a: [", "cannot be read: while parsing"),
        ("- a", "is no YAML of keys and values"),
        ("", "is no YAML of keys and values"),
    ],
)
def test_a_file_that_is_no_config_is_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    path, said = tmp_path / "config.yaml", list[str]()
    if text is not None:
        path.write_text(text)
    assert read_config(str(path), said.append) == {}
    assert len(said) == 1 and message in said[0] and "\n" not in said[0]


def test_without_the_library_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found, said = builtins.__import__, list[str]()

    def without_yaml(name: str, *given: Any, **named: Any) -> Any:
        if name == "yaml":
            raise ImportError
        return found(name, *given, **named)

    monkeypatch.setattr(builtins, "__import__", without_yaml)
    assert read_config("config.yaml", said.append) == {}
    [line] = said
    assert line.startswith("config='config.yaml' needs PyYAML, which is not installed; pip install 'chiplog[wandb]'")
