"""A process that is not a rank writes into the run of the training, under its own label.

Run: `python evaluator.py`
"""

import subprocess
import sys

import chiplog

if len(sys.argv) > 1:
    run = chiplog.init(run_id=sys.argv[1], label="eval", primary=False, job_type="eval", update_finish_state=False)
    run.log({"eval/accuracy": 0.9}, step=10)
    run.finish(exit_code=3)  # the evaluation fails; the run does not
else:
    run = chiplog.init(project="evaluator", label="trainer", config={"lr": 0.1})
    for step in range(10):
        run.log({"train/loss": 1.0 / (step + 1)}, step=step)
    subprocess.run([sys.executable, __file__, run.id])
    run.finish()
