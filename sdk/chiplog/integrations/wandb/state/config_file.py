"""A config as a file: YAML, as W&B has it or plain."""

import os
from collections.abc import Callable
from typing import Any

from chiplog.safety.diagnostics import error_text


def read_config(path: "str | os.PathLike[str]", warn: Callable[[str], None]) -> dict[str, Any]:
    """Return the entries of a config file; none of a file that cannot be read, with one line.

    Args:
        path: A YAML file. W&B's own have `key: {value: …, desc: …}`; any other value is taken as it is.
        warn: Writes a line.

    """
    try:
        import yaml  # PyYAML comes with most frameworks; a training without such a file does not need it
    except ImportError:
        warn(f"config={os.fspath(path)!r} needs PyYAML, which is not installed; pip install 'chiplog[wandb]'")
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            found = yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = " ".join(error_text(error).split())
        warn(f"config={os.fspath(path)!r} cannot be read: {why}; the config is left out")
        return {}
    if not isinstance(found, dict):
        warn(f"config={os.fspath(path)!r} is no YAML of keys and values; the config is left out")
        return {}
    entries = {str(key): value for key, value in found.items() if key != "wandb_version"}
    return {key: value["value"] if _is_of_wandb(value) else value for key, value in entries.items()}


def _is_of_wandb(value: Any) -> bool:
    return isinstance(value, dict) and "value" in value and value.keys() <= {"value", "desc"}
