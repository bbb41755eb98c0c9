"""Two ranks log artifacts while the collector is killed: afterwards each version and each file is there, once.

The oracle is what each rank wrote to its files.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

import chiplog
from tests.support.node import Node
from tests.support.waiting import WAIT_S, wait_until

N_VERSIONS = 12
RANK = """
import os, sys, time, chiplog
rank, n = int(sys.argv[1]), int(sys.argv[2])
with chiplog.init("p", run_id="r", label=f"rank{rank}", primary=rank == 0, capture_console=False) as run:
    for version in range(n):
        artifact = chiplog.Artifact("shared" if version % 2 else f"of-{rank}", "model")
        for name in ("large", "small"):
            with artifact.new_file(name) as file:
                file.write(f"{name} {version}" * (100_000 if name == "large" else 1))
        run.log_artifact(artifact, aliases=["best"] if version == 3 else None)
        print(version, flush=True)
        time.sleep(0.05)
"""


def content(name: str, version: int) -> bytes:
    return (f"{name} {version}" * (100_000 if name == "large" else 1)).encode()


def test_a_collector_that_is_killed_while_two_ranks_log_has_every_version_once(
    bare_node: Node, tmp_path: Path, monkeypatch
) -> None:
    node = bare_node.start()
    monkeypatch.setenv("CHIPLOG_DIR", str(node.root))
    monkeypatch.setenv("CHIPLOG_AGENT", node.place.agent_address)
    command = [sys.executable, "-c", RANK]
    with (
        subprocess.Popen([*command, "0", str(N_VERSIONS)], stdout=subprocess.PIPE, text=True) as first,
        subprocess.Popen([*command, "1", str(N_VERSIONS)], stdout=subprocess.PIPE, text=True) as second,
    ):
        logged = first.stdout
        assert logged is not None
        assert "3\n" in iter(logged.readline, "")
        assert node.collector is not None
        node.collector.kill()
        node.collector.wait()
        assert "7\n" in iter(logged.readline, "")
        node.start_collector()
        for rank in (first, second):
            wait_until(lambda rank=rank: rank.poll() is not None, "a rank that ends")
            assert rank.returncode == 0
    own = [version for version in range(N_VERSIONS) if not version % 2]
    shared = [version for version in range(N_VERSIONS) if version % 2]
    n_expected = 2 * len(own) + len(shared)
    node.until("SELECT count(*) AS n FROM artifacts", lambda rows: rows[0]["n"] == n_expected)
    files = "SELECT count(*) AS n FROM artifact_files WHERE is_stored"
    node.until(files, lambda rows: rows[0]["n"] == 2 * n_expected)
    rows = node.sql("SELECT name, sha256 FROM artifact_files")
    found = {name: sorted(row["sha256"] for row in rows if row["name"] == name) for name in ("of-0", "of-1", "shared")}
    for name, versions in (("of-0", own), ("of-1", own), ("shared", shared)):
        contents = [content(kind, version) for version in versions for kind in ("large", "small")]
        assert found[name] == sorted(hashlib.sha256(data).hexdigest() for data in contents)
        numbers = node.sql("SELECT version FROM artifacts WHERE name = $name ORDER BY version", {"name": name})
        assert [row["version"] for row in numbers] == list(range(len(versions)))
    with chiplog.init("p", run_id="user", capture_console=False) as run:
        used = run.use_artifact("shared:best", timeout_s=WAIT_S)
        assert Path(used.download(tmp_path / "out"), "large").read_bytes() == content("large", 3)
