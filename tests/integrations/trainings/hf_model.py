"""A model for Hugging Face's Trainer, which writes down what each rank trains on; the Trainer keeps what it logs."""

import json
import struct
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Noise(torch.utils.data.Dataset):
    """Random tokens with a label."""

    def __init__(self, length=16):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        chosen = torch.Generator().manual_seed(index)
        return {"input_ids": torch.randint(0, 32, (8,), generator=chosen), "labels": torch.tensor(index % 2)}


def model():
    """Return a model with two classes."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return BertForSequenceClassification(BertConfig(vocab_size=32, num_labels=2, **sizes))


def arguments(**given):
    """Return arguments of a small training: a row for each of its steps."""
    fixed = {"output_dir": "output", "run_name": "tiny", "use_cpu": True, "disable_tqdm": True, "logging_steps": 1}
    return TrainingArguments(**{**fixed, "per_device_train_batch_size": 2, "report_to": "chiplog", **given})


class RankTrainer(Trainer):
    """Sums the losses of this rank by optimizer step."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.losses = {}

    def training_step(self, *given, **named):
        loss = super().training_step(*given, **named)
        step = self.state.global_step + 1
        self.losses[step] = self.losses[step] + loss if step in self.losses else loss
        return loss

    def write_down(self, name):
        """Write a file of what this rank logs, and of its losses."""
        rows = [
            [entry["step"], shown(key), value]
            for entry in self.state.log_history
            for key, value in entry.items()
            if key != "step"
        ]
        steps = [[step, "rank/loss", loss.item()] for step, loss in self.losses.items()]
        speeds = [[step, "rank/samples_per_s", 1.0] for step in self.losses]
        Path(f"{name}{self.args.process_index}.json").write_text(json.dumps(rows + steps + speeds), "utf-8")


def shown(key):
    """Return the name that transformers' own callbacks give to what the Trainer logs."""
    return f"{key[:4]}/{key[5:]}" if key.startswith(("eval_", "test_")) else f"train/{key}"


def add_recorded(expected, name, ranks=1):
    """Add what the ranks have written down."""
    for rank in range(ranks):
        for step, key, value in json.loads(Path(f"{name}{rank}.json").read_text("utf-8")):
            expected.add(step, {key: value})


def check_tensorboard(directory, rows):
    """Raise an error unless transformers' TensorBoard callback has the same values, as float32."""
    found = []
    for file in Path(directory).rglob("events.out.tfevents.*"):
        events = EventAccumulator(str(file)).Reload()
        found += [(at.step, key, at.value) for key in events.Tags()["scalars"] for at in events.Scalars(key)]
    single = [(step, key, struct.unpack("f", struct.pack("f", value))[0]) for step, key, value in rows]
    assert sorted(found) == sorted(row for row in single if not row[1].startswith("rank/")), (found, single)
