"""A script for W&B that names W&B's server and a key tries to reach no address beyond loopback.

It runs with an agent and a collector of its own in a network namespace that has the loopback interface only. The kernel
counts each try there to send a packet elsewhere, and an audit hook notes what Python asks of the resolver.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chiplog_schemas.paths import paths_for_root
from tests.support.loopback import N_STRAY, TOOLS, on_loopback
from tests.support.node import end_daemons
from tests.support.tools import needs
from tests.support.waiting import WAIT_S

pytestmark = needs(*TOOLS)

SCRIPT = f"""
import os, sys

asked = []

def note(event, args):
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        asked.append(args)

sys.addaudithook(note)

import wandb

wandb.login()
wandb.login(key=os.environ["WANDB_API_KEY"], relogin=True, verify=True)
run = wandb.init(entity="team", project="p", config={{"lr": 0.1}}, save_code=True)
for step in range(3):
    run.log({{"loss": step, "image": wandb.Image([[step] * 8] * 8)}})
    run.log({{"table": wandb.Table(columns=["a"], data=[[step]]), "page": wandb.Html("<p>x</p>")}})
with open("weights", "w") as file:
    file.write("w")
artifact = wandb.Artifact("model", "model")
artifact.add_file("weights")
artifact.add_reference("http://192.0.2.1/data", checksum=False)
run.log_artifact(artifact).wait()
wandb.save("weights")
wandb.alert("title", "text")
wandb.finish()
path = f"team/p/{{run.id}}"
api = wandb.Api(api_key=os.environ["WANDB_API_KEY"], timeout=60)
assert api.run(path).summary["loss"] == 2 and [found.id for found in api.runs("team/p")] == [run.id]
assert api.artifact("team/p/model:latest").version == "v0"
assert open(api.run(path).file("weights").download("copy").name).read() == "w"
assert asked == [], asked
assert {N_STRAY} == 0
"""


def ran(script: str, directory: Path, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    (directory / "script.py").write_text(script)
    return subprocess.run(
        on_loopback([sys.executable, *command, "script.py"]),
        env={**os.environ, **environ},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_a_script_that_names_the_server_and_a_key_reaches_nothing_beyond_loopback(tmp_path: Path) -> None:
    root = tmp_path / "chiplog"
    environ = {
        "CHIPLOG_DIR": str(root),
        "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
        "WANDB_BASE_URL": "http://192.0.2.1:8080",
        "HTTPS_PROXY": "http://192.0.2.1:3128",
    }
    try:
        done = ran(SCRIPT, tmp_path, "-m", "chiplog_cli", "run", "--as", "wandb", "--", sys.executable, **environ)
        assert done.returncode == 0, done.stderr
    finally:
        end_daemons(paths_for_root(root))


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM"])
def test_the_kernel_counts_a_try_to_reach_another_address(tmp_path: Path, kind: str) -> None:
    reach = f"import socket\ntry: socket.socket(type=socket.{kind}).connect(('192.0.2.1', 80))\nexcept OSError: pass\n"
    for script, n_stray in (("", 0), (reach, 1)):
        done = ran(f"{script}print({N_STRAY})", tmp_path)
        assert done.stdout == f"{n_stray}\n", done.stderr
