"""A host with a new name on its old disk: a renamed laptop, a container that was created again on its volume."""

import os
import subprocess
import sys
from pathlib import Path

from chiplog_client.client import connect
from chiplog_schemas.paths import paths_for_root
from tests.support.node import end_daemons
from tests.support.tools import NAMESPACES, needs
from tests.support.waiting import WAIT_S

pytestmark = needs("unshare", NAMESPACES)
RANK = """
import sys, chiplog
run = chiplog.init(run_id=sys.argv[1], capture_console=False)
for step in range(50):
    run.log({"x": float(step)}, step=step)
run.finish()
"""


def run_as(host: str, *arguments: str, root: Path) -> str:
    command = ["unshare", "--uts", "sh", "-c", 'hostname "$1"; shift; exec "$@"', "sh", host, sys.executable, "-P"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CHIPLOG_")}
    environ["CHIPLOG_DIR"] = str(root)
    done = subprocess.run([*command, *arguments], env=environ, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_runs_after_a_new_host_name_are_in_sql_and_complete(tmp_path: Path) -> None:
    root = tmp_path / "chiplog"
    place = paths_for_root(root)
    try:
        for host in ("laptop", "renamed"):
            assert run_as(host, "-c", RANK, host, root=root) == ""
            end_daemons(place)  # killed or stopped with the host
        shown = run_as("renamed", "-c", "from chiplog_cli import main; main()", "doctor", root=root)
        assert "belongs to" not in shown
        with connect(dir=root) as client:
            query = (
                "SELECT run_id, state, count(*) AS n FROM runs JOIN metrics USING (run_id) GROUP BY ALL ORDER BY ALL"
            )
            rows = client.sql(query).tuples()
        assert rows == [("laptop", "finished", 50), ("renamed", "finished", 50)]
    finally:
        end_daemons(place)
