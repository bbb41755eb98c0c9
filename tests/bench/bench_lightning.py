"""What chiplog's callback for Lightning costs a step, beyond an empty callback with the same hooks in the same process.

Trainings of a layer with the one and with the other in turn. A step lasts from one `training_step` to the next.
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
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
        self.times = []
    def training_step(self, batch, index):
        self.times.append(time.perf_counter_ns())
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)
def nothing(self, *given, **named):
    pass
hooks = {name: nothing for name in vars(ChiplogCallback) if name.startswith("on_")}
Empty = type("Empty", (lightning.Callback,), hooks)
data = torch.utils.data.DataLoader(torch.randn(STEPS * 8, 64), batch_size=8)
def median_of(callback):
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=1, logger=False, callbacks=[callback],
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
    model = Model()
    trainer.fit(model, data)
    times = model.times[FIRST:]
    return statistics.median(after - before for before, after in zip(times, times[1:])) / 1e3
callback = ChiplogCallback(project="bench", capture_console=False)
found = [(median_of(Empty()), median_of(callback)) for _ in range(PAIRS)]
empty = statistics.median(one for one, _ in found)
print(json.dumps([statistics.median(other - one for one, other in found), empty]))
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
    yardstick = f"a step with an empty callback {empty_us:,.0f}"
    return [Figure("Lightning's callback, a step, median", cost_us, "µs", at_most=30, yardstick=yardstick)]
