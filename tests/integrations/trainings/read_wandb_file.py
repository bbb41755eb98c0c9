"""Print what `.wandb` files hold, as JSON: run, history, config, summary. It runs where the real wandb can be imported.

Media are their file and caption, tables their columns and rows, histograms their edges and counts. The summary is
without media.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

from chiplog_client.transfer.wandb_file import read_records

_PRIVATE = ("_step", "_runtime", "_timestamp", "_wandb", "_wandb/runtime")  # W&B's own


def read(path: Path) -> dict[str, Any]:
    """Return the run of one file."""
    found: dict[str, Any] = {"config": {}, "summary": {}, "exit_code": None}
    history: dict[int, dict[str, Any]] = {}
    damage: list[str] = []
    with path.open("rb") as file:
        for content in read_records(file, damage.append):
            record = Record.FromString(content)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run = record.run
                found.update(run_id=run.run_id, name=run.display_name, notes=run.notes, tags=sorted(run.tags))
                found.update(group=run.run_group, job_type=run.job_type)
                _apply(found["config"], run.config)
            elif kind in ("config", "summary"):
                _apply(found[kind], getattr(record, kind))
            elif kind == "history":
                row = history.setdefault(record.history.step.num, {})
                row.update({_name(item): json.loads(item.value_json) for item in record.history.item})
            elif kind == "exit":
                found["exit_code"] = record.exit.exit_code
    files = path.parent / "files"
    return {
        **found,
        "damage": damage,
        "config": _without_private(found["config"]),
        "summary": {key: value for key, value in _plain(found["summary"], files).items() if not _is_media(value)},
        "history": [
            [step, key, value] for step, row in sorted(history.items()) for key, value in _plain(row, files).items()
        ],
    }


def _name(item: Any) -> str:
    return "/".join(item.nested_key) or item.key


def _apply(target: dict[str, Any], change: Any) -> None:
    for item in change.update:
        target[_name(item)] = json.loads(item.value_json)
    for item in change.remove:
        target.pop(_name(item), None)


def _without_private(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in _PRIVATE}


def _plain(values: dict[str, Any], files: Path) -> dict[str, Any]:
    """Return values with media as one value each, whose parts are `KEY/_type`, `KEY/sha256` … in the records."""
    found = _without_private(values)
    keys = [name.removesuffix("/_type") for name in values if name.endswith("/_type")]
    for key in sorted(keys, key=len):  # the layers that are drawn over an image are parts of it
        if f"{key}/_type" not in found:
            continue
        parts = [part for part in found if part.startswith(f"{key}/")]
        found[key] = _media({part.removeprefix(f"{key}/"): found.pop(part) for part in parts}, files)
    return found


def _media(value: dict[str, Any], files: Path) -> Any:
    kind = value["_type"]
    if kind == "histogram":
        return {"edges": value["bins"], "counts": value["values"]}
    if kind == "table-file":
        table = json.loads((files / value["path"]).read_text(encoding="utf-8"))
        return {"columns": table["columns"], "rows": table["data"]}
    paths = value.get("filenames") or [value["path"]]
    captions = value.get("captions") or [value.get("caption")] * len(paths)
    found = [{"file": str(files / path), "caption": caption} for path, caption in zip(paths, captions, strict=True)]
    of_one = {"boxes": _nested(value, "boxes"), "masks": _nested(value, "masks")}
    for word, one in of_one.items():
        for item, layers in zip(found, value.get(f"all_{word}") or [one] * len(found), strict=True):
            for name, layer in (layers or {}).items():
                item.setdefault(word, {})[name] = _layer(word, files / layer["path"])
    return found


def _nested(value: dict[str, Any], word: str) -> dict[str, dict[str, Any]]:
    """Return the layers of one image, whose parts are `boxes/NAME/path` … in the records."""
    found: dict[str, dict[str, Any]] = {}
    for place, part in value.items():
        if place.startswith(f"{word}/"):
            _, name, entry = place.split("/")
            found.setdefault(name, {})[entry] = part
    return found


def _layer(word: str, path: Path) -> Any:
    """Return boxes as W&B has written them; of a mask its file."""
    return json.loads(path.read_text(encoding="utf-8")) if word == "boxes" else {"file": str(path)}


def _is_media(value: Any) -> bool:
    parts = value[0] if isinstance(value, list) and value else value
    return isinstance(parts, dict) and not parts.keys().isdisjoint(("file", "columns", "edges"))


if __name__ == "__main__":
    runs = [read(Path(path)) for path in sys.argv[1:]]
    json.dump({"version": version("wandb"), "runs": runs}, sys.stdout)
