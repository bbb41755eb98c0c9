"""Optuna's W&B callback: one run for a study."""

import optuna
import wandb
from expected import Expected
from optuna_integration.wandb import WeightsAndBiasesCallback

expected = Expected("optuna")
report = WeightsAndBiasesCallback("loss", wandb_kwargs={"tags": ["tiny"], "name": "study"})


@report.track_in_wandb()
def objective(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", -1, 1)
    wandb.log({"inner": x + 1}, step=trial.number)
    return (x - 0.5) ** 2


study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
study.optimize(objective, n_trials=4, callbacks=[report])
wandb.finish()
for trial in study.trials:
    x = trial.params["x"]
    expected.add(trial.number, {"x": x, "inner": x + 1, "loss": trial.value})
expected.note(config={"direction": ["MINIMIZE"]}, name="study", tags=["tiny"])
expected.write()
