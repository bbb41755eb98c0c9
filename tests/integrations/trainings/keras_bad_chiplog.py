"""What goes wrong around chiplog's callback for Keras: several of them, values that are no numbers, two models, OOM."""

import math
import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy
import torch
from expected import Expected

from chiplog.integrations.keras import ChiplogCallback

expected = Expected("keras")
x, y = numpy.zeros((8, 4)), numpy.zeros(8)
fitting = {"batch_size": 4, "verbose": 0}
report = ChiplogCallback(label="rank0")
BAD = {
    "device": torch.ones((), device="meta"),
    "none": None,
    "word": "x",
    "vector": torch.ones(3),
    "nested": {"none": None, "number": 1.5},
    "nan": math.nan,
    "inf": math.inf,
}
LOGGED = {"nested/number": 1.5, "nan": math.nan, "inf": math.inf, "learning_rate": 0.5}

ADVICE = {
    "device": "cannot be read: RuntimeError Tensor.item() cannot be called on meta tensors; log a number or short text",
    "none": "is a NoneType, not a number or short text; leave it out, or log float('nan')",
    "nested/none": "is a NoneType, not a number or short text; leave it out, or log float('nan')",
    "vector": "is an array of shape (3,); log a scalar such as its mean, or chiplog.Histogram.of(it)",
}
LINES = [
    *(f"'{kind}/{key}' {advice}" for key, advice in ADVICE.items() for kind in ("batch", "epoch")),
    *(f"'batch/{name}' became {name} at step 0; it is kept" for name in ("nan", "inf")),
    *(f"'epoch/{name}' became {name} at step 1; it is kept" for name in ("nan", "inf")),
    "the model has several ChiplogCallbacks; the first one records",
]


def compiled():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(optimizer=keras.optimizers.SGD(0.5), loss="mse")
    return model


class Bad(keras.callbacks.Callback):
    """Gives the callbacks after it values that are no numbers."""

    def on_train_batch_end(self, batch, logs=None):
        logs |= BAD

    on_epoch_end = on_train_batch_end


class Full(keras.callbacks.Callback):
    """Runs out of memory in the second batch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def add(kind, step, values=LOGGED):
    expected.add(step, {f"{kind}/loss": 0.0, **{f"{kind}/{name}": value for name, value in values.items()}})


model = compiled()
model.fit(x, y, validation_data=(x, y), callbacks=[Bad(), report, report, ChiplogCallback()], **fitting)
for step in range(2):
    add("batch", step)
add("epoch", 1)
expected.add(1, {"epoch": 0, "epoch/val_loss": 0.0})
values = model.evaluate(x, y, verbose=0, return_dict=True, callbacks=[report, report, ChiplogCallback()])
expected.add(1, {f"eval/{name}": value for name, value in values.items()})

other = compiled()
other.fit(x, y, callbacks=[report], **fitting)
for step in (2, 3):
    add("batch", step, {"learning_rate": 0.5})
add("epoch", 3, {"learning_rate": 0.5})
expected.add(3, {"epoch": 0})
add("batch", 4, {"learning_rate": 0.5})
end = "CUDA out of memory: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
expected.note(states=["failed"], ends=[["rank0", "failed", 1, None, end]], lines=LINES)
expected.write()
model.fit(x, y, callbacks=[Full(), report], **fitting)
