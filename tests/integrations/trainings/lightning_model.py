"""A model for Lightning, and a logger that writes down what the Trainer hands to its loggers, in a file per rank."""

import csv
import json
from pathlib import Path

import lightning
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only


class Recorder(Logger):
    """What the Trainer hands to its loggers on this rank, and the losses of this rank by optimizer step."""

    name, version = "recorder", 0

    def __init__(self):
        super().__init__()
        self.rows, self.steps = [], []

    def log_hyperparams(self, params, *given, **named):
        pass

    def log_metrics(self, metrics, step=None):
        self.rows += [[step, key, value] for key, value in metrics.items()]

    def log_step(self, step, loss):
        self.steps += [[step, "rank/loss", loss], [step, "rank/samples_per_s", 1.0]]

    def finalize(self, status):
        written = Path(f"rank{rank_zero_only.rank}.new")
        written.write_text(json.dumps([self.rows, self.steps]), "utf-8")
        written.rename(written.with_suffix(".json"))  # another rank may wait for it


class Model(lightning.LightningModule):
    """One layer on noise."""

    def __init__(self, recorder, width=4, lr=0.1):
        super().__init__()
        self.save_hyperparameters(ignore="recorder")
        self.recorder = recorder
        self.layer = torch.nn.Linear(width, 1)
        self.loss = 0.0

    def training_step(self, batch, index):
        loss = self.layer(batch).square().mean()
        self.log("train/loss", loss)
        self.loss += loss.detach() / self.trainer.accumulate_grad_batches
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.recorder.log_step(self.trainer.global_step, self.loss.item())
        self.loss = 0.0

    def validation_step(self, batch, index, dataloader_idx=0):
        self.log("val/loss", self.layer(batch).square().mean(), sync_dist=True)

    def test_step(self, batch, index):
        self.log("test/loss", self.layer(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


def data():
    """Return a loader of 8 batches."""
    return torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4)


def add_recorded(expected, ranks=1):
    """Add what the ranks have written down."""
    for rank in range(ranks):
        rows, steps = json.loads(Path(f"rank{rank}.json").read_text("utf-8"))
        for step, key, value in rows + steps:
            expected.add(step, {key: value})


def check_csv(directory):
    """Raise an error unless Lightning's CSVLogger has the same values of rank 0 as the Recorder."""
    with open(next(Path(directory).rglob("metrics.csv")), encoding="utf-8") as file:
        lines = [(int(line.pop("step")), line) for line in csv.DictReader(file)]
    found = [(step, key, float(text)) for step, line in lines for key, text in line.items() if text]
    rows, _ = json.loads(Path("rank0.json").read_text("utf-8"))
    assert sorted(found) == sorted((step, key, float(value)) for step, key, value in rows)
