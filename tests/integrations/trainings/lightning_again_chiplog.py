"""chiplog's logger and callback for Lightning in several trainings of a script: one stops early, and one fails."""

import lightning
from expected import Expected
from lightning.pytorch.callbacks import EarlyStopping
from lightning_model import Model, Recorder, add_recorded, data

from chiplog.integrations.lightning import ChiplogCallback, ChiplogLogger


class Failing(lightning.Callback):
    """Fails in the third batch."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 2:
            raise RuntimeError("of a callback")


class Worse(Model):
    """Gets no better."""

    def on_validation_epoch_end(self):
        self.log("worse", float(self.trainer.current_epoch))


recorder, logger, callback = Recorder(), ChiplogLogger(name="tiny", log_model=True), ChiplogCallback()


def train(model, *callbacks):
    """Return the trainer after it was used, with all of them."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=9,
        log_every_n_steps=3,
        logger=[logger, recorder],
        callbacks=[callback, *callbacks],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data(), data())
    return trainer


expected = Expected("lightning")
stopped = train(Worse(recorder), EarlyStopping("worse"), callback)
assert stopped.current_epoch == 4, stopped.current_epoch
try:
    train(Model(recorder), Failing())
except RuntimeError as error:
    assert str(error) == "of a callback"
add_recorded(expected)
expected.note(config={"width": 4, "lr": 0.1}, name="tiny", artifacts=1, events={"checkpoint": 4})
expected.write()
