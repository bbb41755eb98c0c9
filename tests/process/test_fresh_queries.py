"""A query right after `init()` waits for the first collector, and one right after `finish()` has the whole run."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from chiplog_schemas.paths import paths_for_root
from tests.support.node import end_daemons
from tests.support.safeguard import Safeguard
from tests.support.waiting import WAIT_S

SAFEGUARDS = [
    Safeguard(
        "a process that has just called `init()` counts as data",
        "live-journals-count",
        condition=False,
        test="test_a_query_within_a_second_of_init_waits_for_the_collector",
    ),
]


def run(root: Path, program: str) -> list[str]:
    """Run a program with its own CHIPLOG_DIR, and return the lines that it prints."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CHIPLOG_")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**environ, "CHIPLOG_DIR": str(root)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_query_within_a_second_of_init_waits_for_the_collector(tmp_path: Path) -> None:
    root = tmp_path / "chiplog"
    program = """
        import chiplog
        run = chiplog.init(project="p")
        with chiplog.connect() as client:
            print(client.sql("SELECT 1 AS a").rows())
        run.finish()
    """
    try:
        assert run(root, program) == ["[{'a': 1}]"]
    finally:
        end_daemons(paths_for_root(root))


def test_a_query_after_finish_has_all_rows_from_this_process_and_from_another(tmp_path: Path) -> None:
    root = tmp_path / "chiplog"
    program = """
        import subprocess, sys
        import chiplog
        other = "import chiplog; print(chiplog.connect().sql('SELECT count(*) AS n FROM metrics').rows()[0]['n'])"
        for number in range(1, 21):
            run = chiplog.init(project="p")
            for step in range(10):
                run.log({"a": step})
            run.finish()
            if number % 10:
                with chiplog.connect() as client:
                    print(client.sql("SELECT count(*) AS n FROM metrics").rows()[0]["n"], flush=True)
            else:
                subprocess.run([sys.executable, "-c", other], check=True)
    """
    try:
        assert run(root, program) == [str(10 * number) for number in range(1, 21)]
        end_daemons(paths_for_root(root))  # the database is there, and no collector
        assert run(root, program.replace("21", "3")) == ["210", "220"]
    finally:
        end_daemons(paths_for_root(root))
