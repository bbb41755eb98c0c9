"""chiplog's logger and callback for Lightning with ddp_spawn: they reach the ranks as pickles."""

import lightning
from expected import Expected
from lightning.pytorch.loggers import CSVLogger
from lightning_model import Model, Recorder, add_recorded, check_csv, data

from chiplog.integrations.lightning import ChiplogCallback, ChiplogLogger

if __name__ == "__main__":
    expected = Expected("lightning")
    recorder = Recorder()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp_spawn",
        max_epochs=2,
        log_every_n_steps=1,
        logger=[ChiplogLogger(name="tiny"), CSVLogger("csv"), recorder],
        callbacks=[ChiplogCallback()],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(recorder), data(), data())
    add_recorded(expected, ranks=2)
    check_csv("csv")
    expected.note(config={"width": 4, "lr": 0.1}, name="tiny", ranks=2, events={"checkpoint": 2})
    expected.write()
