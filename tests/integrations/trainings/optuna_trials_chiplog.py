"""chiplog's callback for Optuna: a run for each trial of two objectives, which logs into it."""

import optuna
from expected import Expected

import chiplog
from chiplog.integrations.optuna import ChiplogCallback

expected = Expected("optuna")
report = ChiplogCallback(run_per_trial=True, tags=["tiny"])


@report.track
def objective(trial: optuna.Trial) -> tuple[float, float]:
    x = trial.suggest_float("x", -1, 1)
    chiplog.log({"inner": x}, step=5)
    if trial.number == 2:
        raise ValueError("a trial that fails")
    return x, -x


study = optuna.create_study(
    study_name="of-many", sampler=optuna.samplers.RandomSampler(seed=0), directions=["minimize"] * 2
)
study.optimize(objective, n_trials=4, catch=ValueError, callbacks=[report])
for trial in study.trials:
    expected.add(5, {"inner": trial.params["x"]})
    expected.add(6, {"duration_s": trial.duration.total_seconds()})
    expected.add(6, {f"value_{index}": value for index, value in enumerate(trial.values or ())})


def pruned(trial: optuna.Trial) -> float:
    for step in range(3):
        trial.report(trial.number + step / 4, step)
    raise optuna.TrialPruned


alone = optuna.create_study(study_name="of-many")
alone.optimize(pruned, n_trials=1, callbacks=[report])
for step in range(3):
    expected.add(step, {"intermediate_value": step / 4})
expected.add(3, {"value": 0.5, "duration_s": alone.trials[0].duration.total_seconds()})
expected.note(runs=5, tags=["tiny"], states=["failed", "finished"], groups=["of-many"], texts=["state"])
expected.write()
