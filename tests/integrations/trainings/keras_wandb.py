"""W&B's callbacks for Keras, on its PyTorch backend."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy
import wandb
from expected import Expected
from wandb.integration.keras import WandbEvalCallback, WandbMetricsLogger, WandbModelCheckpoint

expected = Expected("keras")
keras.utils.set_random_seed(0)
N_BATCHES, N_EPOCHS = 4, 2


class Recorder(keras.callbacks.Callback):
    """Writes down what Keras reports, under the names that W&B's callback gives it."""

    n_calls = 0

    def add(self, kind, number, logs):
        values = {**logs, "learning_rate": float(self.model.optimizer.learning_rate.numpy())}
        values["batch_step" if kind == "batch" else "epoch"] = number
        expected.add(self.n_calls, {f"{kind}/{name}": value for name, value in values.items()})
        self.n_calls += 1

    def on_train_batch_end(self, batch, logs=None):
        self.add("batch", self.n_batches, logs or {})
        self.n_batches += 1

    n_batches = 0

    def on_epoch_end(self, epoch, logs=None):
        self.add("epoch", epoch, logs or {})


class Predictions(WandbEvalCallback):
    """Logs a table of truth, and one of predictions for each epoch."""

    def add_ground_truth(self, logs=None):
        for index in range(2):
            self.data_table.add_data(index, float(y[index]))

    def add_model_predictions(self, epoch, logs=None):
        predicted = self.model.predict(x[:2], verbose=0)
        for index in self.data_table_ref.get_index():
            truth = self.data_table_ref.data[index]
            self.pred_table.add_data(epoch, *truth, float(predicted[index][0]))


chosen = numpy.random.default_rng(0)
x, y = chosen.normal(size=(16, 4)), chosen.normal(size=16)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse", metrics=["mae"])
wandb.init(config={"batch": 4}, tags=["tiny"])
model.fit(
    x,
    y,
    batch_size=16 // N_BATCHES,
    epochs=N_EPOCHS,
    validation_split=0.0,
    validation_data=(x, y),
    verbose=0,
    callbacks=[
        Recorder(),
        WandbMetricsLogger(log_freq="batch"),
        WandbModelCheckpoint("model-{epoch:02d}.keras"),
        Predictions(["index", "y"], ["epoch", "index", "y", "predicted"]),
    ],
)
wandb.finish()
expected.note(config={"batch": 4}, tags=["tiny"], media=["eval_data", "val_data"], artifacts=N_EPOCHS)
expected.write()
