"""Trainers of Transformers: one stops early, one fails, one has too large batches, and one searches by Optuna."""

from expected import Expected
from hf_model import Noise, RankTrainer, add_recorded, arguments, model, shown
from transformers import EarlyStoppingCallback, TrainerCallback

from chiplog.integrations.huggingface import ChiplogCallback


class Failing(TrainerCallback):
    """Fails in the second step."""

    def on_step_end(self, args, state, control, **given):
        if state.global_step == 2:
            raise RuntimeError("of a callback")


def trainer_of(*callbacks, **given):
    """Return a Trainer with chiplog's callback."""
    return RankTrainer(
        model(), arguments(**given), train_dataset=Noise(8), eval_dataset=Noise(4), callbacks=[callback, *callbacks]
    )


callback = ChiplogCallback(name="first")
often = {"report_to": "none", "eval_strategy": "steps", "eval_steps": 1, "save_steps": 1}
best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_runtime", "greater_is_better": True}
expected = Expected("transformers")
stopped = trainer_of(EarlyStoppingCallback(1, 1e9), num_train_epochs=9, **often, **best)
stopped.train()
assert stopped.state.global_step == 2, stopped.state.global_step
stopped.write_down("stopped")
predicted = stopped.predict(Noise(4)).metrics
expected.add(2, {shown(key): value for key, value in predicted.items()})
failed = trainer_of(Failing(), report_to="none")
try:
    failed.train()
except RuntimeError as error:
    assert str(error) == "of a callback"
failed.write_down("failed")


class Smaller(RankTrainer):
    """Is out of memory in the second step, until its batches are smaller."""

    def training_step(self, *given, **named):
        if self.state.global_step == 1 and self._train_batch_size == 2:
            self.write_down("before")
            self.losses = {}
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 bytes")
        return super().training_step(*given, **named)


restarted = Smaller(
    model(),
    arguments(report_to="chiplog", auto_find_batch_size=True, max_steps=2, save_strategy="no"),
    train_dataset=Noise(8),
)
restarted.train()
restarted.write_down("restarted")
add_recorded(expected, "before")
add_recorded(expected, "restarted")
add_recorded(expected, "stopped")
add_recorded(expected, "failed")


class Searching(RankTrainer):
    """Writes down what each of its trials logs."""

    n_trials = 0

    def train(self, *given, **named):
        self.losses = {}
        ended = super().train(*given, **named)
        self.write_down(f"trial{self.n_trials}-")
        self.n_trials += 1
        return ended


search = Searching(
    args=arguments(report_to="chiplog", max_steps=2, eval_strategy="steps", eval_steps=2),
    model_init=lambda trial: model(),
    train_dataset=Noise(8),
    eval_dataset=Noise(4),
)
found = search.hyperparameter_search(
    hp_space=lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-4)},
    hp_name=lambda trial: f"trial {trial.number}",
    n_trials=2,
    backend="optuna",
)
for trial in range(2):
    add_recorded(expected, f"trial{trial}-")
expected.note(runs=3, names=["first", "trial 0", "trial 1"], events={"checkpoint": 4})
expected.write()
