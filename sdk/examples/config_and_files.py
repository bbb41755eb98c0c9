"""Config, summaries, files, and resuming a run.

Run: `python config_and_files.py`
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import chiplog

with (
    TemporaryDirectory() as directory,
    chiplog.init(project="config_and_files", label="trainer", config={"lr": 0.1}) as run,
):
    run.config["batch"] = 64
    run.define_metric("loss", summary="min")
    for step, loss in enumerate((0.9, 0.3, 0.5)):
        run.log({"loss": loss}, step=step)
    checkpoint = Path(directory, "model.txt")
    checkpoint.write_text("weights")
    run.save(checkpoint)

with chiplog.init(resume=run.id, label="trainer") as run:  # tomorrow, in another process
    run.log({"loss": 0.2}, step=3)
