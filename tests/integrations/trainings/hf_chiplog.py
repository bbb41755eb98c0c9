"""The Trainer of Transformers with `report_to="chiplog"` on two ranks, beside its TensorBoard callback."""

import json
import os
from pathlib import Path

from expected import Expected
from hf_model import Noise, RankTrainer, add_recorded, arguments, check_tensorboard, model

import chiplog.integrations.huggingface  # noqa: F401  # report_to="chiplog"

of_tensorboard = os.path.abspath("of_tensorboard")
os.environ["TENSORBOARD_LOGGING_DIR"] = of_tensorboard
given = arguments(
    report_to=["chiplog", "tensorboard"],
    num_train_epochs=2,
    gradient_accumulation_steps=2,
    eval_strategy="epoch",
    save_strategy="epoch",
)
trainer = RankTrainer(model(), given, train_dataset=Noise(20), eval_dataset={"a": Noise(), "b": Noise(8)})
trainer.train()
trainer.evaluate(Noise(8), metric_key_prefix="test")
trainer.write_down("rank")
trainer.accelerator.wait_for_everyone()
if trainer.is_world_process_zero():
    expected = Expected("transformers")
    add_recorded(expected, "rank", given.world_size)
    check_tensorboard(of_tensorboard, json.loads(Path("rank0.json").read_text("utf-8")))
    expected.note(
        config={"hidden_size": 8, "logging_steps": 1, "model/num_parameters": trainer.model.num_parameters()},
        name="tiny",
        ranks=given.world_size,
        phases=["backward", "checkpoint", "data", "eval", "forward", "optimizer"],
        events={"checkpoint": 2},
    )
    expected.write()
