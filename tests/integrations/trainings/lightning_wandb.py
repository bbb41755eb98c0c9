"""Lightning's WandbLogger, on two ranks: its rank 0 logs."""

import lightning
import torch
from expected import Expected
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

expected = Expected("lightning")


class Recorder(Logger):
    """Writes down what the Trainer hands to its loggers."""

    name, version = "recorder", 0
    n_calls = 0

    @rank_zero_only
    def log_hyperparams(self, params, *given, **named):
        pass

    @rank_zero_only
    def log_metrics(self, metrics, step=None):
        expected.add(self.n_calls, {**metrics, **({} if step is None else {"trainer/global_step": step})})
        self.n_calls += 1
        self.last_step = step


class Model(lightning.LightningModule):
    """One layer on noise."""

    def __init__(self, width: int = 4, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1)

    def training_step(self, batch, index):
        loss = self.layer(batch).square().mean()
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val/loss", self.layer(batch).square().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


lightning.seed_everything(0)
logger = WandbLogger(name="tiny", tags=["tiny"], log_model="all", save_dir=".")
recorder = Recorder()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=2,
    log_every_n_steps=1,
    logger=[logger, recorder],
    enable_progress_bar=False,
    enable_model_summary=False,
    default_root_dir=".",
)
model = Model()
logger.watch(model)
data = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4)
trainer.fit(model, data, data)
if trainer.is_global_zero:
    logger.log_table("predictions", columns=["x", "y"], data=[[1, 2.0]])
    logger.log_image("noise", [255 * torch.rand(8, 8, 3).numpy()])
    for call in range(2):  # the logger's step metric is added to them
        expected.add(recorder.n_calls + call, {"trainer/global_step": recorder.last_step})
    logger.experiment.finish()
    expected.note(
        config={"width": 4, "lr": 0.1}, name="tiny", tags=["tiny"], media=["noise", "predictions"], artifacts=2, ranks=2
    )
    expected.write()
