"""What goes wrong around chiplog's callback for Transformers: values that are no numbers, two Trainers at once, OOM."""

import math

import torch
from expected import Expected
from hf_model import Noise, RankTrainer, add_recorded, arguments, model
from transformers import TrainerCallback

from chiplog.integrations.huggingface import ChiplogCallback

expected = Expected("transformers")
callback = ChiplogCallback(label="rank0")
BAD = {
    "device": torch.ones((), device="meta"),
    "none": None,
    "word": "x",
    "vector": torch.ones(3),
    "nested": {"none": None, "number": 1.5},
    3: 1.5,
    "nan": math.nan,
    "inf": math.inf,
}
ADVICE = {
    "device": "cannot be read: RuntimeError Tensor.item() cannot be called on meta tensors; log a number or short text",
    "none": "is a NoneType, not a number or short text; leave it out, or log float('nan')",
    "nested/none": "is a NoneType, not a number or short text; leave it out, or log float('nan')",
    "vector": "is an array of shape (3,); log a scalar such as its mean, or chiplog.Histogram.of(it)",
    "nan": "became nan at step 0; it is kept",
    "inf": "became inf at step 0; it is kept",
}
LINES = [
    *(f"'train/{key}' {advice}" for key, advice in ADVICE.items()),
    "key 3 is not a string; use str() of it",
    "'rank/loss' became nan at step 4; it is kept",
    *["the Trainer has several ChiplogCallbacks; the last one records"] * 2,
]


def trainer_of(cls, *callbacks, reports="none"):
    """Return a Trainer of four steps."""
    given = arguments(report_to=reports, num_train_epochs=1, save_strategy="no")
    return cls(model(), given, train_dataset=Noise(8), callbacks=list(callbacks))


class Values(RankTrainer):
    """Logs what is no number; the last loss is none."""

    def training_step(self, *given, **named):
        if self.state.global_step == 0:
            self.log(dict(BAD))
            epoch = self.state.log_history.pop()["epoch"]
            logged = {"nested/number": 1.5, "nan": math.nan, "inf": math.inf, "epoch": epoch}
            expected.add(0, {f"train/{key}": value for key, value in logged.items()})
        loss = super().training_step(*given, **named)
        if self.state.global_step < 3:
            return loss
        self.losses[4] = loss * math.nan
        return self.losses[4]


class Inner(TrainerCallback):
    """Trains another model in the second step, by the same callback."""

    def on_step_end(self, args, state, control, **given):
        if state.global_step == 2:
            inner = trainer_of(RankTrainer, callback)
            inner.train()
            inner.write_down("inner")


class Full(RankTrainer):
    """Runs out of memory in the third step."""

    def training_step(self, *given, **named):
        if self.state.global_step == 2:
            self.write_down("full")
            end()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().training_step(*given, **named)


def end():
    """Write down what is expected."""
    for name in ("values", "inner", "outer", "full"):
        add_recorded(expected, name)
    reason = "CUDA out of memory: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    expected.note(states=["failed"], ends=[["rank0", "failed", 1, None, reason]], lines=LINES)
    expected.write()


values = trainer_of(Values, callback, callback, reports="chiplog")
values.train()
values.write_down("values")
outer = trainer_of(RankTrainer, Inner(), callback)
outer.train()
outer.write_down("outer")
trainer_of(Full, callback).train()
