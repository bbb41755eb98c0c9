"""hf_chiplog.py on two ranks that `accelerate launch` starts."""

import socket
import subprocess
import sys
from pathlib import Path

with socket.socket() as found:
    found.bind(("127.0.0.1", 0))
    port = found.getsockname()[1]
options = ["--cpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
launch = [sys.executable, "-m", "accelerate.commands.launch", *options, f"--main_process_port={port}"]
subprocess.run([*launch, str(Path(__file__).with_name("hf_chiplog.py"))], check=True)
