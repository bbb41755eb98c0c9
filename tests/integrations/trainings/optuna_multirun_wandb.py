"""Optuna's W&B callback with `as_multirun=True`: a run for each trial."""

import optuna
import wandb
from expected import Expected
from optuna_integration.wandb import WeightsAndBiasesCallback

expected = Expected("optuna")
report = WeightsAndBiasesCallback("loss", wandb_kwargs={"group": "study"}, as_multirun=True)


@report.track_in_wandb()
def objective(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", -1, 1)
    for step in range(3):
        wandb.log({"inner": x + step})
    return (x - 0.5) ** 2


study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
study.optimize(objective, n_trials=3, callbacks=[report])
for trial in study.trials:
    x = trial.params["x"]
    for step in range(3):
        expected.add(step, {"inner": x + step})
    expected.add(trial.number, {"x": x, "loss": trial.value, "trial_number": trial.number})
expected.note(runs=len(study.trials), config={"direction": ["MINIMIZE"]}, tags=[study.study_name])
expected.write()
