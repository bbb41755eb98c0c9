"""Lightning's WandbLogger with ddp_spawn: a process that the script starts logs into the script's run."""

import json

import lightning
import torch
from expected import Expected
from lightning.pytorch.loggers import WandbLogger


class Model(lightning.LightningModule):
    """One layer on noise, which writes down what it logs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = self.layer(batch).square().mean()
        if self.trainer.is_global_zero:
            with open("losses", "a") as file:
                print(loss.item(), file=file)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    expected = Expected("lightning")
    logger = WandbLogger(name="tiny", save_dir=".")
    logger.experiment.log({"before": 1.0})
    expected.add(0, {"before": 1.0, "trainer/global_step": 0})  # the step metric that the logger defines, as in W&B
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp_spawn",
        max_epochs=1,
        log_every_n_steps=1,
        logger=logger,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4))
    with open("losses") as file:
        for step, loss in enumerate(map(json.loads, file)):
            expected.add(step, {"loss": loss, "epoch": 0, "trainer/global_step": step})
    expected.note(name="tiny", ranks=2)
    expected.write()
