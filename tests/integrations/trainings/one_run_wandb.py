"""A script's own run, which Transformers' Trainer, Lightning's WandbLogger and Accelerate find open and write, too."""

import os

import torch
import wandb
from accelerate import Accelerator
from expected import Expected
from lightning.pytorch.loggers import WandbLogger
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

expected = Expected("transformers")
FINAL = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos")
n_calls = 0


def add(values):
    global n_calls
    expected.add(n_calls, values)
    n_calls += 1


class Recorder(TrainerCallback):
    """Writes down what the Trainer reports."""

    def on_log(self, args, state, control, logs=None, **given):
        rest = {f"train/{name}": value for name, value in logs.items() if name not in FINAL}
        add({**rest, "train/global_step": state.global_step})


class Noise(torch.utils.data.Dataset):
    """Random tokens with a label."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        chosen = torch.Generator().manual_seed(index)
        return {"input_ids": torch.randint(0, 32, (8,), generator=chosen), "labels": torch.tensor(index % 2)}


run = wandb.init(name="first", tags=["tiny"], config={"own": 1})
run.log({"own": 0.5})
add({"own": 0.5})
sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
arguments = TrainingArguments(
    output_dir="output", report_to="wandb", max_steps=2, logging_steps=1, use_cpu=True, disable_tqdm=True
)
model = BertForSequenceClassification(BertConfig(vocab_size=32, num_labels=2, **sizes))
Trainer(model, arguments, train_dataset=Noise(), callbacks=[Recorder()]).train()
assert wandb.run is run

logger = WandbLogger()
assert logger.experiment is run
logger.log_metrics({"lightning": 0.25}, step=7)
by_transformers = {"train/global_step": 2}  # its define_metric("*") adds this to all later calls
add({"lightning": 0.25, "trainer/global_step": 7, **by_transformers})

accelerator = Accelerator(cpu=True, log_with="wandb")
accelerator.init_trackers(os.environ["WANDB_PROJECT"], config={"of_accelerate": 2})
assert accelerator.get_tracker("wandb", unwrap=True) is run
accelerator.log({"accelerate": 0.75}, step=100)
expected.add(100, {"accelerate": 0.75, **by_transformers})
accelerator.end_training()
assert wandb.run is None
expected.note(name="first", tags=["tiny"], config={"own": 1, "hidden_size": 8, "of_accelerate": 2})
expected.write()
