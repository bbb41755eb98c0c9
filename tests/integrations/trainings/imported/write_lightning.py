"""Train with Lightning and its CSVLogger in the current directory, and print its version."""

import warnings
from importlib.metadata import version

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger


class Model(LightningModule):
    """Two metrics on different steps, and hyperparameters that YAML has as objects of Python."""

    def __init__(self, lr=0.1, layers=(1, 2), act=torch.nn.ReLU):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, _):
        loss = self.layer(batch[0]).pow(2).mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val/nan", torch.tensor(float("nan")))
        self.log("val/loss", self.layer(batch[0]).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


warnings.simplefilter("ignore")
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 2)), batch_size=4)
fixed = {"enable_progress_bar": False, "enable_checkpointing": False, "accelerator": "cpu", "log_every_n_steps": 5}
for _ in range(2):
    Trainer(max_epochs=3, logger=CSVLogger("."), **fixed).fit(Model(), data, data)
print(version("lightning"))
