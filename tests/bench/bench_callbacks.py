"""What chiplog's callbacks for Lightning, Transformers and Keras cost a step, beyond an empty one with the same hooks.

Trainings of a small model with the one and with the other in turn, in one process. The cost is the time in a step's
hooks, so that what else the machine does counts only while it interrupts them.
The libraries are in the Python that `CHIPLOG_INTEGRATIONS_PYTHON` names, as in `make integrations`. Without it there
are no figures.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from tests.bench.figure import Figure, Node
from tests.integrations.matrix import PYTHON

COMMON = """
import json, logging, os, statistics, time, warnings
os.environ |= {"KERAS_BACKEND": "torch", "HF_HUB_OFFLINE": "1"}
import torch
warnings.simplefilter("ignore")
torch.set_num_threads(1)
PAIRS, STEPS, FIRST = 6, 400, 50
spent, is_inside, sums = 0, False, []
def timed(hook):
    def call(*given, **named):
        global spent, is_inside
        if is_inside:
            return hook(*given, **named)
        is_inside, began = True, time.perf_counter_ns()
        hook(*given, **named)
        spent += time.perf_counter_ns() - began
        is_inside = False
    return call
def nothing(self, *given, **named):
    pass
def measure(base, callback, train):
    hooks = [name for name in vars(type(callback)) if name.startswith("on_")]
    empty = type("Empty", (base,), dict.fromkeys(hooks, nothing))()
    for one, names in ((empty, hooks), (callback, [*hooks, "_add_batch"]), (callback._phases, ["begin", "end"])):
        for name in names:
            if hasattr(one, name):
                setattr(one, name, timed(getattr(one, name)))
    def median_of(one):
        sums.clear()
        train(one)
        steps = sums[FIRST:]
        return statistics.median(after - before for before, after in zip(steps, steps[1:])) / 1e3
    found = [(median_of(empty), median_of(callback)) for _ in range(PAIRS)]
    cost = statistics.median(other - one for one, other in found)
    print("\\n" + json.dumps([cost, statistics.median(one for one, _ in found)]))
"""

LIGHTNING = """
import lightning
from chiplog.integrations.lightning import ChiplogCallback
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def training_step(self, batch, index):
        sums.append(spent)
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)
data = torch.utils.data.DataLoader(torch.randn(STEPS * 8, 64), batch_size=8)
def train(callback):
    lightning.Trainer(accelerator="cpu", devices=1, max_epochs=1, logger=False, callbacks=[callback],
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False).fit(Model(), data)
measure(lightning.Callback, ChiplogCallback(project="bench", capture_console=False), train)
"""

TRANSFORMERS = """
import transformers
from chiplog.integrations.huggingface import ChiplogCallback
transformers.logging.set_verbosity_error()
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def forward(self, x):
        sums.append(spent)
        return {"loss": self.layer(x).square().mean()}
data = [{"x": torch.randn(64)} for _ in range(STEPS * 8)]
arguments = transformers.TrainingArguments(output_dir="output", report_to="none", max_steps=STEPS, use_cpu=True,
    per_device_train_batch_size=8, logging_strategy="no", save_strategy="no", disable_tqdm=True)
def train(callback):
    transformers.Trainer(Model(), arguments, train_dataset=data, callbacks=[callback]).train()
measure(transformers.TrainerCallback, ChiplogCallback(project="bench", capture_console=False), train)
"""

KERAS = """
import keras
from chiplog.integrations.keras import ChiplogCallback
data = torch.randn(STEPS * 8, 64)
class Counter(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        sums.append(spent)
def train(callback):
    model = keras.Sequential([keras.layers.Dense(64)])
    model.compile("sgd", "mse")
    model.fit(data, data, batch_size=8, verbose=0, callbacks=[Counter(), callback])
measure(keras.callbacks.Callback, ChiplogCallback(project="bench", capture_console=False), train)
"""


def measure() -> list[Figure]:
    if not os.environ.get(PYTHON):
        return []
    trainings = {"Lightning": LIGHTNING, "Transformers": TRANSFORMERS, "Keras": KERAS}
    return [_measure(name, training) for name, training in trainings.items()]


def _measure(name: str, training: str) -> Figure:
    with tempfile.TemporaryDirectory() as directory, Node(Path(directory) / "chiplog") as node:
        command = [os.environ[PYTHON], "-c", COMMON + training]
        printed = subprocess.run(command, env=node.environ, check=True, stdout=subprocess.PIPE, cwd=directory).stdout
    cost_us, empty_us = json.loads(printed.splitlines()[-1])
    yardstick = f"an empty callback {empty_us:,.1f}"
    return Figure(f"the callback for {name}, a step, median", cost_us, "µs", at_most=30, yardstick=yardstick)
