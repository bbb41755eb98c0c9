"""chiplog's logger and callback for Lightning on two ranks, beside Lightning's CSVLogger: `validate`, `fit`, `test`."""

import lightning
from expected import Expected
from lightning.pytorch.loggers import CSVLogger
from lightning_model import Model, Recorder, add_recorded, check_csv, data

from chiplog.integrations.lightning import ChiplogCallback, ChiplogLogger

lightning.seed_everything(0)
recorder = Recorder()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=2,
    accumulate_grad_batches=2,
    log_every_n_steps=1,
    logger=[ChiplogLogger(name="tiny", tags=["tiny"], log_model="all"), CSVLogger("csv"), recorder],
    callbacks=[ChiplogCallback()],
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Model(recorder)
trainer.validate(model, data(), verbose=False)
trainer.fit(model, data(), [data(), data()])
trainer.test(model, data(), verbose=False)
trainer.strategy.barrier()
if trainer.is_global_zero:
    expected = Expected("lightning")
    add_recorded(expected, ranks=2)
    check_csv("csv")
    phases = ["backward", "checkpoint", "data", "eval", "forward", "optimizer"]
    expected.note(config={"width": 4, "lr": 0.1}, name="tiny", tags=["tiny"], artifacts=2, ranks=2, phases=phases)
    expected.note(events={"checkpoint": 2})
    expected.write()
