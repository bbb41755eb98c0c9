"""What goes wrong around chiplog's logger and callback for Lightning: each training goes on, with each value once."""

import math

import lightning
import torch
from expected import Expected
from lightning.pytorch.loggers import CSVLogger
from lightning_model import Model, Recorder, add_recorded, check_csv, data

from chiplog.integrations.lightning import ChiplogCallback, ChiplogLogger

expected = Expected("lightning")
options = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "log_every_n_steps": 1}
options |= {"enable_progress_bar": False, "enable_model_summary": False}
logger, callback = ChiplogLogger(name="tiny"), ChiplogCallback()

BAD = {
    "device": torch.ones((), device="meta"),
    "none": None,
    "word": "x",
    "list": [1, 2],
    "vector": torch.ones(3),
    "nested": {"none": None, "number": 1.5},
    3: 1.5,
    "nan": math.nan,
    "inf": math.inf,
}
ADVICE = {
    "device": "cannot be read: RuntimeError Tensor.item() cannot be called on meta tensors; log a number or short text",
    "none": "is a NoneType, not a number or short text; leave it out, or log float('nan')",
    "list": "is a list, not a number or short text; "
    "log each under a name of its own, their mean, or chiplog.Histogram.of(it)",
    "vector": "is an array of shape (3,); log a scalar such as its mean, or chiplog.Histogram.of(it)",
    "nan": "became nan at step 0; it is kept",
    "inf": "became inf at step 0; it is kept",
}
LINES = [
    *(f"'{key}' {advice}" for key, advice in ADVICE.items()),
    f"'nested/none' {ADVICE['none']}",
    "key 3 is not a string; use str() of it",
    f"'rank/loss' {ADVICE['device']}",
    f"'rank/loss' {ADVICE['vector'].replace('3', '2')}",
    "'rank/loss' is a object, not a number or short text; log float(value) or str(value)",
    "'rank/loss' became nan at step 5; it is kept",
    "the trainer has several ChiplogCallbacks; the first one records",
    "the trainer has several ChiplogLoggers, which record into one run; the first one records",
]


def train(model, loggers, callbacks, **more):
    trainer = lightning.Trainer(logger=loggers, callbacks=callbacks, **options, **more)
    trainer.fit(model, data())
    assert "save_checkpoint" not in vars(trainer)
    assert "_on_before_fetch" not in vars(trainer.fit_loop.epoch_loop)


class Values(Model):
    """Logs what is no number."""

    def training_step(self, batch, index):
        if index == 0:
            self.logger.log_metrics(BAD, step=0)
            expected.add(0, {"nested/number": 1.5, "nan": math.nan, "inf": math.inf})
        return super().training_step(batch, index)


class Inner(lightning.Callback):
    """Trains another model in the fourth batch, by the same callback and the same logger."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 3:
            inner = Recorder()
            train(Model(inner), [logger, inner], [callback], limit_train_batches=2, enable_checkpointing=False)
            add_recorded(expected)


class Losses(lightning.Callback):
    """Gives the callbacks after it losses that are no numbers."""

    bad = (None, "x", torch.ones((), device="meta"), torch.ones(2), object(), math.nan)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx < len(self.bad):
            outputs["loss"] = self.bad[batch_idx]


class Newer(ChiplogCallback):
    """Is called as by a version of Lightning that gives its hooks an argument more."""

    def on_before_optimizer_step(self, *given):
        super().on_before_optimizer_step(*given, "more")

    def on_train_batch_end(self, *given):
        super().on_train_batch_end(*given, "more")


# Two loggers, one of them twice, beside another library's; a callback twice, and another one.
recorder = Recorder()
train(Model(recorder), [logger, CSVLogger("csv"), logger, ChiplogLogger(), recorder], [callback, callback, Newer()])
add_recorded(expected)
check_csv("csv")

# Two trainers at once with one callback and one logger.
recorder = Recorder()
train(Model(recorder), [logger, recorder], [Inner(), callback])
add_recorded(expected)

# Values and losses that are no numbers.
recorder = Recorder()
train(Values(recorder), [logger, recorder], [Newer()])
add_recorded(expected)
recorder = Recorder()
train(Model(recorder), False, [Losses(), Newer()])
for step, key, value in recorder.steps:
    if key != "rank/loss" or step >= len(Losses.bad):
        expected.add(step, {key: value})
expected.add(5, {"rank/loss": math.nan})
expected.note(name="tiny", lines=LINES)
expected.write()
