"""Only the user can access files of chiplog, for any umask of the training."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

TRAINING = """
import sys, chiplog
for run_id, mode in (("online", "online"), ("offline", "offline")):
    run = chiplog.init(run_id=run_id, mode=mode, config={"lr": 0.1})
    for step in range(10):
        run.log({"x": float(step)})
    run.save(sys.argv[0])
    run.finish()
"""


def open_to_others(root: Path) -> list[str]:
    """Return mode and path of each file, directory and socket that others have a right to."""
    found = [root, *root.rglob("*")]
    return [f"{path.lstat().st_mode:o} {path}" for path in found if path.lstat().st_mode & 0o077]


@proves(
    "private-umask", "what DuckDB and the daemons make is for their user alone", part="0o077", new="os.umask(0o077)"
)
def test_nobody_else_can_read_or_write_what_chiplog_makes_under_umask_000(chiplog_dir, tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)

    def run(*command: str) -> None:
        subprocess.run(
            [sys.executable, *command],
            umask=0,
            env=os.environ | {"CHIPLOG_SURROUNDINGS": "1"},
            timeout=WAIT_S,
            check=True,
        )

    run(str(script))
    node = Node(chiplog_dir)  # of which a training has started all
    node.until("SELECT count(*) AS n FROM metrics", lambda rows: rows[0]["n"] == 10)
    run("-m", "chiplog_cli", "sync")
    node.until("SELECT count(*) AS n FROM metrics", lambda rows: rows[0]["n"] == 20)
    assert (chiplog_dir / "collector" / "index.duckdb").exists()
    assert open_to_others(chiplog_dir) == []
    for command in ("down", "compact", "rebuild"):
        run("-m", "chiplog_cli", command)
        assert open_to_others(chiplog_dir) == []
