"""Print what Trackio's own reader finds in the project of write_trackio.py, as JSON, by run."""

import hashlib
import json
from datetime import datetime
from importlib.metadata import version
from typing import Any

from trackio.sqlite_storage import SQLiteStorage
from trackio.utils import MEDIA_DIR

PROJECT = "mnist ü"


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, dict) and "_type" not in value
        found |= flat(value, f"{prefix}{key}/") if nested else {f"{prefix}{key}": value}
    return found


def read(run_id: str) -> dict[str, Any]:
    """Return the values of a run, each as key, step, time and value."""
    found: dict[str, Any] = {"metrics": [], "texts": [], "media": [], "tables": [], "histograms": []}
    for row in SQLiteStorage.get_logs(PROJECT, run_id=run_id):
        step, time = row.pop("step"), row.pop("timestamp")
        us = round(datetime.fromisoformat(time).timestamp() * 1e6)
        for key, value in flat(row).items():
            kind = value["_type"] if isinstance(value, dict) else type(value).__name__
            match kind:
                case "str":
                    found["texts"].append((key, step, us, value))
                case "trackio.markdown":
                    found["texts"].append((key, step, us, value["_value"]))
                case "trackio.table":
                    found["tables"].append((key, step, us))
                case "trackio.histogram":
                    found["histograms"].append((key, step, us, value["bins"], value["values"]))
                case "trackio.image" | "trackio.audio":
                    digest = hashlib.sha256((MEDIA_DIR / value["file_path"]).read_bytes()).hexdigest()
                    found["media"].append((key, step, us, digest))
                case _:
                    found["metrics"].append((key, step, us, repr(float(value))))
    found["config"] = SQLiteStorage.get_run_config(PROJECT, run_id=run_id)
    found["system"] = [
        (key, value)
        for row in SQLiteStorage.get_system_logs(PROJECT, run_id=run_id)
        for key, value in flat(row).items()
        if key != "timestamp"
    ]
    found["alerts"] = [(row["title"], row["text"]) for row in SQLiteStorage.get_alerts(PROJECT, run_id=run_id)]
    return found


runs = {row["id"]: row["name"] for row in SQLiteStorage.get_run_records(PROJECT)}
found = {name: {"run_id": run_id, **read(run_id)} for run_id, name in runs.items()}
path = str(SQLiteStorage.get_project_db_path(PROJECT))
print(json.dumps({"version": version("trackio"), "path": path, "runs": found}))
