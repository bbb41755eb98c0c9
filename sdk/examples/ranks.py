"""Ranks of srun or mpirun: nothing but `init()`, unchanged.

Run: `srun --ntasks 2 python ranks.py` or `mpirun -n 2 python ranks.py`
"""

import chiplog

with chiplog.init(project="ranks") as run:
    for step in range(10):
        run.log({"loss": 1.0 / (step + 1)}, step=step)
