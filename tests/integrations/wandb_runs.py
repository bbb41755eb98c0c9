"""What a script logged, in one shape: as W&B recorded it in `.wandb` files, and as SQL has it."""

import hashlib
import io
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from tests.integrations.environment import wandb_directory
from tests.integrations.matrix import PYTHON
from tests.support.node import Node

_TRAININGS = Path(__file__).with_name("trainings")
SCRIPTS = _TRAININGS / "plain_wandb"
_OTHER_MEDIA = "kind NOT IN ('table', 'mask') AND NOT json_exists(metadata, '$.row')"


def real_wandb(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which `import wandb` is W&B's own library, which writes files only."""
    path = [str(wandb_directory(os.environ[PYTHON])), *filter(None, [environ.get("PYTHONPATH")])]
    return {**environ, "PYTHONPATH": os.pathsep.join(path), "WANDB_MODE": "offline", "WANDB_SILENT": "true"}


def of_wandb(directory: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the version of W&B, and the runs that it recorded below a directory, in the order of their starts."""
    paths = sorted(directory.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_ctime_ns)
    command = [os.environ[PYTHON], str(_TRAININGS / "read_wandb_file.py"), *map(str, paths)]
    found = json.loads(subprocess.check_output(command, env=real_wandb(os.environ)))
    for media in (value for run in found["runs"] for _, _, value in run["history"] if isinstance(value, list)):
        for item in media:
            if isinstance(item, dict) and "file" in item:
                for part in (item, *item.get("masks", {}).values()):
                    part["content"] = content_digest(Path(part.pop("file")).read_bytes())
    return found["version"], found["runs"]


def content_digest(data: bytes) -> str:
    """Return the SHA-256 of a file; of a PNG that of its pixels, as it can be compressed in several ways."""
    if data.startswith(b"\x89PNG"):
        picture = Image.open(io.BytesIO(data))
        data = f"{picture.mode} {picture.size} ".encode() + picture.tobytes()
    return hashlib.sha256(data).hexdigest()


def of_sql(node: Node, project: str) -> list[dict[str, Any]]:
    """Return the runs of a project that have ended, in the order of their starts."""
    query = f"FROM runs WHERE project = '{project}' AND state <> 'running' ORDER BY created_at"
    return [_run(node, row) for row in node.try_sql(query)]


def _run(node: Node, row: dict[str, Any]) -> dict[str, Any]:
    def ask(query: str) -> list[dict[str, Any]]:
        return node.try_sql(query.replace("$run", f"'{row['run_id']}'"))

    history = [list(found.values()) for found in ask("SELECT step, key, value FROM metrics WHERE run_id = $run")]
    history += [list(found.values()) for found in ask("SELECT step, key, value FROM texts WHERE run_id = $run")]
    for found in ask("SELECT step, key, edges, counts FROM histograms WHERE run_id = $run"):
        history.append([found["step"], found["key"], {"edges": found["edges"], "counts": found["counts"]}])
    media: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for found in ask(
        "SELECT step, key, sha256, metadata->>'caption' AS caption, metadata->>'boxes' AS boxes FROM media "
        f"WHERE run_id = $run AND {_OTHER_MEDIA} ORDER BY step, key, (metadata->>'item')::INTEGER"
    ):
        found["content"] = _stored_content(node, found.pop("sha256"))
        if (boxes := found.pop("boxes")) is not None:
            found["boxes"] = json.loads(boxes)
        media.setdefault((found.pop("step"), found.pop("key")), []).append(found)
    for found in ask(
        "SELECT step, key, sha256, coalesce((metadata->>'item')::INTEGER, 0) AS item FROM media "
        "WHERE run_id = $run AND kind = 'mask' AND NOT json_exists(metadata, '$.row')"
    ):
        key, _, name = found["key"].rpartition("/")
        if len(images := media.get((found["step"], key), [])) > found["item"]:  # a mask is stored before its image
            images[found["item"]].setdefault("masks", {})[name] = {"content": _stored_content(node, found["sha256"])}
    history += [[step, key, found] for (step, key), found in media.items()]
    for found in ask("SELECT DISTINCT step, key FROM media WHERE run_id = $run AND kind = 'table'"):
        rows = ask(f"SELECT * EXCLUDE (label) FROM media_table($run, '{found['key']}', {found['step']})")
        table = {"columns": list(rows[0]) if rows else [], "rows": [[_cell(v) for v in each.values()] for each in rows]}
        history.append([found["step"], found["key"], table])
    return {
        **{name: row[name] or "" for name in ("run_id", "notes", "job_type")},
        "name": "" if row["name"] in (None, row["run_id"]) else row["name"],
        "group": row["run_group"] or "",
        "tags": sorted(row["tags"] or ()),
        "exit_code": row["exit_code"],
        "state": row["state"],
        "config": _json_of(ask("SELECT key, value FROM config WHERE run_id = $run")),
        "summary": _json_of(ask("SELECT key, value FROM run_summary WHERE run_id = $run")),
        "history": history,
    }


def _stored_content(node: Node, digest: str) -> str:
    path = node.place.collector / "files" / digest[:2] / digest
    return content_digest(path.read_bytes()) if path.is_file() else "not stored yet"


def _cell(value: Any) -> Any:
    """Return a value of a table. Of an image in a cell W&B's file has its class only."""
    return "Image" if isinstance(value, str) and value.startswith("sha256:") else value


def _json_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {row["key"]: json.loads(row["value"]) for row in rows}
