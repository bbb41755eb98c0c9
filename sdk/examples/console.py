"""The console: what Python, logging, C code and subprocesses print, and a progress bar as its last state.

Run: `python console.py`
"""

import logging
import subprocess
import time

import chiplog

logging.basicConfig(format="%(levelname)s %(message)s")
with chiplog.init(project="console", label="trainer") as run:
    print("epoch 1", flush=True)
    for percent in (10, 50, 100):
        print(f"\r{percent} %", end="", flush=True)
        time.sleep(0.01)
    print(flush=True)
    subprocess.run(["echo", "said by a subprocess"])
    logging.warning("the learning rate is high")
