"""chiplog's callback for Keras, on its PyTorch backend: fit, go on from a checkpoint, evaluate, and fit by a schedule.

All ranks train on the same data, so that one of them knows what all must log.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy
from expected import Expected

from chiplog.integrations.keras import ChiplogCallback

expected = Expected("keras")
rank, n_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
keras.utils.set_random_seed(0)
N_BATCHES = 12
chosen = numpy.random.default_rng(0)
x, y = chosen.normal(size=(4 * N_BATCHES, 4)), chosen.normal(size=4 * N_BATCHES)
fitting = {"batch_size": 4, "verbose": 0}


class Recorder(keras.callbacks.Callback):
    """Writes down what Keras reports."""

    step = -1
    rate_every = 1

    def add(self, kind, logs, *, has_rate):
        row = {f"{kind}/{name}": value for name, value in logs.items()}
        if has_rate:
            row[f"{kind}/learning_rate"] = float(self.model.optimizer.learning_rate)
        for _ in range(n_ranks):
            expected.add(self.step, row)

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        self.add("batch", logs, has_rate=batch % self.rate_every == 0)

    def on_epoch_end(self, epoch, logs=None):
        self.add("epoch", logs, has_rate=True)
        for _ in range(n_ranks):
            expected.add(self.step, {"epoch": epoch})


def compiled(rate):
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(rate), loss="mse", metrics=["mae"])
    return model


model, recorder, path = compiled(0.1), Recorder(), f"model-{rank}.keras"
report = ChiplogCallback(tags=["tiny"], log_model=rank == 0)
checkpoints = keras.callbacks.ModelCheckpoint(path)
model.fit(x, y, epochs=2, validation_data=(x, y), callbacks=[recorder, report, checkpoints], **fitting)
assert not {"save", "save_weights"} & set(vars(model))

model, report = keras.saving.load_model(path), ChiplogCallback()
model.fit(x, y, initial_epoch=2, epochs=3, callbacks=[recorder, report, report], **fitting)
values = model.evaluate(x, y, verbose=0, return_dict=True, callbacks=[report])
for _ in range(n_ranks):
    expected.add(recorder.step, {f"eval/{name}": value for name, value in values.items()})

recorder.rate_every = 10
scheduled = compiled(keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.5))
scheduled.fit(x, y, epochs=1, callbacks=[recorder, report], **fitting)

expected.note(
    tags=["tiny"],
    artifacts=2,
    phases=["checkpoint", "data", "eval", "train"],
    events={"checkpoint": 2 * n_ranks},
)
if rank == 0:
    expected.write()
