"""What chiplog's callback for Lightning costs a step, beyond an empty callback with the same hooks in the same process.

Trainings of a layer with the one and with the other in turn. The cost is the time in the hooks of a step, so that what
else the machine does counts only while it interrupts them.
Lightning is in the Python that `CHIPLOG_INTEGRATIONS_PYTHON` names, as in `make integrations`. Without it there are no
figures.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from tests.bench.figure import Figure, Node
from tests.integrations.matrix import PYTHON

TRAINING = """
import json, logging, statistics, time, warnings, lightning, torch
from chiplog.integrations.lightning import ChiplogCallback
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
PAIRS, STEPS, FIRST = 10, 400, 50
spent = 0
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
        self.sums = []
    def training_step(self, batch, index):
        self.sums.append(spent)
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)
def timed(hook):
    def call(*given, **named):
        global spent
        began = time.perf_counter_ns()
        hook(*given, **named)
        spent += time.perf_counter_ns() - began
    return call
def nothing(self, *given, **named):
    pass
hooks = [name for name in vars(ChiplogCallback) if name.startswith("on_")]
Empty = type("Empty", (lightning.Callback,), dict.fromkeys(hooks, nothing))
data = torch.utils.data.DataLoader(torch.randn(STEPS * 8, 64), batch_size=8)
def median_of(callback):
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=1, logger=False, callbacks=[callback],
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
    model = Model()
    trainer.fit(model, data)
    sums = model.sums[FIRST:]
    return statistics.median(after - before for before, after in zip(sums, sums[1:])) / 1e3
empty, callback = Empty(), ChiplogCallback(project="bench", capture_console=False)
for one, names in ((empty, hooks), (callback, [*hooks, "_begin_data"])):
    for name in names:
        setattr(one, name, timed(getattr(one, name)))
found = [(median_of(empty), median_of(callback)) for _ in range(PAIRS)]
print(json.dumps([statistics.median(other - one for one, other in found), statistics.median(one for one, _ in found)]))
"""


def measure() -> list[Figure]:
    if not os.environ.get(PYTHON):
        return []
    with tempfile.TemporaryDirectory() as directory:
        node = Node(Path(directory) / "chiplog")
        try:
            command = [os.environ[PYTHON], "-c", TRAINING]
            printed = subprocess.run(
                command, env=node.environ, check=True, stdout=subprocess.PIPE, cwd=directory
            ).stdout
        finally:
            node.stop()
    cost_us, empty_us = json.loads(printed.splitlines()[-1])
    yardstick = f"an empty callback {empty_us:,.1f}"
    return [Figure("Lightning's callback, a step, median", cost_us, "µs", at_most=30, yardstick=yardstick)]
