"""Train with Hugging Face's Trainer in the current directory; its checkpoints have its state. Print the version."""

import sys
from importlib.metadata import version
from pathlib import Path

from transformers import Trainer

sys.path.insert(0, str(Path(__file__).parents[1]))
from hf_model import Noise, arguments, model

given = {"num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch", "report_to": "none"}
Trainer(model(), arguments(**given), train_dataset=Noise(), eval_dataset=Noise()).train()
print(version("transformers"))
