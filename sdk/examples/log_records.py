"""Records of Python's logging, and its warnings, beside the metrics.

Run: `python -W default log_records.py`
"""

import logging
import warnings
from pathlib import Path

import chiplog
from chiplog.integrations.logging import ChiplogHandler

logging.basicConfig(level=logging.INFO)
run = chiplog.init(project="log-records")
logging.getLogger().addHandler(ChiplogHandler())
chiplog.capture_warnings()

log = logging.getLogger("train")
warnings.warn("the scheduler is called before the optimizer", stacklevel=1)
for step in range(100):
    loss = 2.0 / (step + 1)
    run.log({"loss": loss}, step=step)
    log.info("step %d, loss %.3f", step, loss)  # a few rows, and a count of the others
    if loss > 1:
        log.warning("loss %s is high at step %d", loss, step)
try:
    Path("checkpoint.pt").read_bytes()
except FileNotFoundError:
    log.exception("no checkpoint")
run.finish()
