"""Check an installed wheel: the C part is in it, and both paths of log() record the same events."""

import json
import os
import subprocess
import sys
import tempfile

PROGRAM = """
import json, time, chiplog
from chiplog.native.loader import hot_path, why_not
run = chiplog.init()
for step in range(100):
    with run.phase("forward"):
        pass
    run.log({"loss": step / 3, "rank": step, "good": True}, step=step)
run.finish()
client, deadline = chiplog.connect(), time.monotonic() + 60
while len(rows := client.sql("SELECT step, key, value FROM metrics ORDER BY step, key").rows()) < 300:
    assert time.monotonic() < deadline, f"{len(rows)} rows after 60 s"
    time.sleep(0.1)
print(json.dumps([why_not, [list(row.values()) for row in rows]]))
"""


def run(native):
    """Return why C was not used, and the rows of a small run."""
    with tempfile.TemporaryDirectory() as root:
        environ = {**os.environ, "CHIPLOG_DIR": root, "CHIPLOG_NATIVE": native}
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, stdout=subprocess.PIPE, check=True)
        subprocess.run([sys.executable, "-m", "chiplog_cli", "down"], env=environ, stdout=subprocess.DEVNULL)
        why_not, rows = json.loads(done.stdout.splitlines()[-1])
        return why_not, rows


def main():
    """Compare the two paths."""
    in_c, in_python = run("1"), run("0")
    assert in_c[0] == "", in_c[0]
    assert in_python[0] == "CHIPLOG_NATIVE=0", in_python[0]
    assert len(in_c[1]) == 300
    assert in_c[1] == in_python[1]
    print("300 values, the same from C and from Python")


if __name__ == "__main__":
    main()
