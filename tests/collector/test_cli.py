"""The collector's commands: what they refuse, each in one line."""

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from chiplog_collector.cli import collector, compact, rebuild
from chiplog_schemas.paths import paths_for_root


def test_rewriting_while_a_collector_runs_is_refused_in_one_line_that_names_it(tmp_path: Path) -> None:
    place = paths_for_root(tmp_path / "chiplog")
    place.collector.mkdir(parents=True)
    hold = (
        "import time; from pathlib import Path; from chiplog_schemas.process.file_lock import Lock; "
        f"lock = Lock(Path({str(place.collector / 'lock')!r})); print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        for command in (rebuild, compact):
            done = CliRunner().invoke(command, ["--dir", str(place.root)])
            assert done.exit_code == 1
            assert f"held by collector process {holder.pid}" in done.output
            assert len(done.output.splitlines()) == 1
    finally:
        holder.kill()
        holder.communicate()
    done = CliRunner().invoke(rebuild, ["--dir", str(tmp_path / "nothing")])
    assert (done.exit_code, len(done.output.splitlines())) == (1, 1)
    assert CliRunner().invoke(collector, ["--bind", "tcp://0.0.0.0:5000"]).exit_code == 2
