"""The Trainer of Transformers with `report_to="wandb"`, on two ranks: its first process logs."""

import os

import torch
from expected import Expected
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

expected = Expected("transformers")
os.environ["WANDB_LOG_MODEL"] = "checkpoint"
os.environ["WANDB_WATCH"] = "all"
torch.manual_seed(0)
FINAL = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos")


class Recorder(TrainerCallback):
    """Writes down what the Trainer reports, under the names that its W&B callback gives it."""

    def __init__(self):
        self.n_calls = 0
        self.summary = {}

    def on_log(self, args, state, control, logs=None, **given):
        if not state.is_world_process_zero:
            return
        self.summary |= {name: value for name, value in logs.items() if name in FINAL}
        rest = {name: value for name, value in logs.items() if name not in FINAL}
        names = {name: f"eval/{name[5:]}" if name.startswith("eval_") else f"train/{name}" for name in rest}
        expected.add(self.n_calls, {names[name]: value for name, value in rest.items()})
        expected.add(self.n_calls, {"train/global_step": state.global_step})
        self.n_calls += 1


class Noise(torch.utils.data.Dataset):
    """Random tokens with a label."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        chosen = torch.Generator().manual_seed(index)
        return {"input_ids": torch.randint(0, 32, (8,), generator=chosen), "labels": torch.tensor(index % 2)}


small = BertConfig(
    vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2
)
arguments = TrainingArguments(
    output_dir="output",
    report_to="wandb",
    run_name="tiny-bert",
    num_train_epochs=2,
    per_device_train_batch_size=4,
    per_device_eval_batch_size=4,
    logging_steps=1,
    eval_strategy="epoch",
    save_strategy="epoch",
    use_cpu=True,
    disable_tqdm=True,
)
model = BertForSequenceClassification(small)
recorder = Recorder()
trainer = Trainer(model, arguments, train_dataset=Noise(), eval_dataset=Noise(), callbacks=[recorder])
trainer.train()
if trainer.is_world_process_zero():
    expected.note(
        config={"hidden_size": 8, "logging_steps": 1, "model/num_parameters": model.num_parameters()},
        name="tiny-bert",
        summary=recorder.summary,
        artifacts=4,  # the model's architecture, two checkpoints, the model
    )
    expected.write()
