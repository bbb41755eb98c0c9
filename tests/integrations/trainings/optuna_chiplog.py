"""chiplog's callback for Optuna: one run for a study, of trials that end in each way, in two threads."""

import optuna
from expected import Expected

from chiplog.integrations.optuna import ChiplogCallback

expected = Expected("optuna")


def objective(trial: optuna.Trial) -> float:
    x, kind = trial.suggest_float("x", -1, 1), trial.suggest_categorical("kind", ["square", "cube"])
    trial.report(x, step=0)
    if trial.number == 1:
        trial.report(2.0, step=1)  # more than each value
        raise optuna.TrialPruned
    if trial.number == 2:
        raise ValueError("a trial that fails")
    return x**2 if kind == "square" else x**3


study = optuna.create_study(study_name="of-one", sampler=optuna.samplers.RandomSampler(seed=0), direction="maximize")
study.optimize(objective, n_trials=6, n_jobs=2, catch=ValueError, callbacks=[ChiplogCallback(name="study")])
rows = study.trials_dataframe().astype({"number": int})
for row in rows.to_dict("records"):
    values = {"params/x": row["params_x"], "duration_s": row["duration"].total_seconds()}
    expected.add(row["number"], values)
    if row["state"] != "FAIL":
        expected.add(row["number"], {"value": row["value"]})
expected.note(
    name="study",
    config={
        "study": {"name": "of-one", "directions": ["maximize"], "sampler": "RandomSampler", "pruner": "MedianPruner"}
    },
    summary={"value": study.best_value},
    texts=["params/kind", "state"],
)
expected.write()
