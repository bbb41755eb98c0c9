"""A training with a real library in a process of its own, and the check of its rows in SQL."""

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from tests.integrations.matrix import PYTHON, ROW
from tests.support.failed_output import ended_with
from tests.support.loopback import on_loopback, processes_with
from tests.support.node import Node
from tests.support.ports import free_ports
from tests.support.waiting import WAIT_S, wait_until

EXPECTED = "EXPECTED_FILE"  # variable of trainings/expected.py
_SCRIPTS = Path(__file__).with_name("trainings")
END_S = 4 * WAIT_S  # of a script that imports a library in several processes in turn, on a machine that is busy
_NOT_WATCHED = "NOT regexp_matches(key, '^(gradients|parameters)/')"  # histograms of run.watch()
_VALUE = "if(key LIKE '%\\_per\\_s' ESCAPE '\\', sign(value), value)"  # of a speed, that there is one
_RANK_PHASES = "SELECT label, list(DISTINCT phase ORDER BY phase) AS names FROM phases"
_SHOWN = 6  # differences in a message
_OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
_OFFLINE |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}  # the first writes a key into the home


class Training:
    """One start of one script. It has its own project, so that many share a collector."""

    def __init__(self, library: str, directory: Path, node: Node, properties: list[tuple[str, Any]]) -> None:
        self._node = node
        self._directory = directory
        self._project = directory.name
        self._file = directory / "expected.json"
        self._row: dict[str, Any] = {"library": library}
        properties.append((ROW, self._row))

    def run(self, script: str, *launcher: str, ranks: int = 1, exit_code: int = 0) -> None:
        """Run a script of trainings/, with arguments, to its end, on several ranks by torchrun, without a network.

        chiplog must print no line into it but those that the script expects, and no process may stay.
        """
        name, *arguments = script.split()
        python = os.environ[PYTHON]
        torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={free_ports(1)}"]
        command = [python, "-m", "chiplog_cli", *launcher, python, *(torchrun if ranks > 1 else [])]
        project = {"CHIPLOG_PROJECT": self._project, "WANDB_PROJECT": self._project}
        named = {**project, "CHIPLOG_DIR": str(self._node.root), EXPECTED: str(self._file)}
        self._row["ranks"] = ranks
        ended = subprocess.run(
            on_loopback([*command, str(_SCRIPTS / name), *arguments]),
            env={**os.environ, **_OFFLINE, **named, "HF_HOME": str(self._directory)},
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=END_S,
        )
        assert ended.returncode == exit_code, ended_with(ended.returncode, ended.stdout)
        said = sorted(line.partition(": ")[2] for line in ended.stdout.splitlines() if line.startswith("chiplog: "))
        written = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}
        expected = sorted(written.get("lines", ()))
        assert said == expected, f"chiplog complains: {said}, and not: {expected}"
        wait_until(lambda: not processes_with(EXPECTED, str(self._file)), "the end of what the training started")

    def check(self) -> None:
        """Compare SQL with what the script wrote: each value once, at its step; config, tags, media, state …."""
        expected = json.loads(self._file.read_text(encoding="utf-8"))
        self._row |= {"version": expected["version"], "rows": len(expected["rows"])}
        self._row["ranks"] = expected.get("ranks", self._row["ranks"])
        found: dict[str, str] = {"": "nothing was asked yet"}

        def is_right() -> bool:
            found.clear()
            found.update({name: text for name, text in self._differences(expected).items() if text})
            return not found

        try:
            wait_until(is_right, "the rows")
        except AssertionError:
            raise AssertionError("\n".join(f"{name}: {text}" for name, text in found.items())) from None

    def _differences(self, expected: dict[str, Any]) -> dict[str, str]:
        """Return what differs in SQL; '' for nothing."""
        runs = self._of_project("SELECT run_id, name, tags, state, run_group FROM runs")
        rows = self._of_project(f"SELECT step, key, {_VALUE} FROM metrics", _NOT_WATCHED)
        config = {row["key"]: json.loads(row["value"]) for row in self._of_project("SELECT key, value FROM config")}
        summary = {
            row["key"]: json.loads(row["value"]) for row in self._of_project("SELECT key, value FROM run_summary")
        }
        versions = self._node.try_sql(f"SELECT name, version FROM artifacts WHERE project = '{self._project}'")
        media = self._of_project("SELECT step, key, sha256 FROM media")
        contents = [list(row.values()) for row in media if row["key"] in {key for _, key, _ in expected["contents"]}]
        files = {row["path"] for row in self._of_project("SELECT path FROM files")}
        texts = {row["key"] for row in self._of_project("SELECT DISTINCT key FROM texts")}
        labels = self._of_project("SELECT label, state, exit_code, exit_signal, reason FROM labels")
        ends = [list(row.values()) for row in labels]
        phases = self._of_project(_RANK_PHASES, "phase NOT IN ('gc', 'step') GROUP BY label")
        events = self._of_project("SELECT kind, count(*) AS n FROM events", "true GROUP BY kind")
        groups = {row["run_group"] for row in runs}
        states = {row["state"] for row in (*labels, *runs)}
        named = {row["name"] for row in runs} - {row["run_id"] for row in runs}
        return {
            "runs": _unless(len(runs) == expected["runs"], runs),
            "rows": _differ(expected["rows"], [list(row.values()) for row in rows]),
            "states": _unless(states == set(expected["states"] or states), labels),
            "labels": _unless(expected.get("labels") in (None, sorted(row["label"] for row in labels)), labels),
            "ends": _unless(all(end in ends for end in expected.get("ends", ())), labels),
            "name": _unless(expected.get("name") in (None, *named), named),
            "names": _unless(set(expected.get("names", ())) <= named, named),
            "groups": _unless(groups == set(expected.get("groups", groups)), groups),
            "tags": _unless(all(sorted(row["tags"] or ()) == sorted(expected["tags"]) for row in runs), runs),
            "config": _unless(all(config.get(key) == v for key, v in expected["config"].items()), config),
            "summary": _unless(all(summary.get(key) == v for key, v in expected.get("summary", {}).items()), summary),
            "artifacts": _unless(len(versions) == expected["artifacts"], versions),
            "media": _unless(set(expected.get("media", ())) <= {row["key"] for row in media}, media),
            "contents": _unless(sorted(contents) == sorted(expected["contents"]), contents),
            "texts": _unless(set(expected.get("texts", ())) <= texts, texts),
            "phases": _unless(expected.get("phases") in (None, *(row["names"] for row in phases)), phases),
            "events": _unless(
                expected.get("events", {}).items() <= {row["kind"]: row["n"] for row in events}.items(), events
            ),
            "files": _unless(set(expected.get("files", ())) <= files, files),
        }

    def _of_project(self, query: str, condition: str = "true") -> list[dict[str, Any]]:
        own = f"run_id IN (SELECT run_id FROM runs WHERE project = '{self._project}')"
        return self._node.try_sql(f"{query} WHERE {own} AND {condition}")


def _unless(is_right: bool, found: Any) -> str:
    return "" if is_right else f"{found}"[:2000]


def _differ(expected: list[list[Any]], found: list[list[Any]]) -> str:
    wanted, stored = Counter(map(_comparable, expected)), Counter(map(_comparable, found))
    missing, surplus = (sorted(rows.elements(), key=str) for rows in (wanted - stored, stored - wanted))
    if not missing and not surplus:
        return "" if wanted else "nothing was logged"
    return f"missing {len(missing)}: {missing[:_SHOWN]}; surplus {len(surplus)}: {surplus[:_SHOWN]}"


def _comparable(row: list[Any]) -> tuple[Any, ...]:
    """Return a row that is equal to one of the same values, also if they are NaN."""
    return tuple("nan" if value != value else value for value in row)
