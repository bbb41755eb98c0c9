"""What goes wrong around chiplog's callback for Optuna: it is there twice, values that are no numbers, no memory."""

import math

import optuna
from expected import Expected

from chiplog.integrations.optuna import ChiplogCallback

expected = Expected("optuna")
report = ChiplogCallback(name="study")
ENDS = [1.5, math.nan, None, "x", math.inf, [1.0, 2.0], MemoryError("no room")]
LINES = [
    "'value' became inf at step 4; it is kept",
    *2 * ["the study has several ChiplogCallbacks, or one of them twice; the first one records"],
]


def objective(trial: optuna.Trial) -> float:
    trial.suggest_categorical("kind", [None])
    end = ENDS[trial.number]
    if isinstance(end, BaseException):
        raise end
    return end


def note(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    expected.add(trial.number, {"duration_s": trial.duration.total_seconds()})
    if trial.values:
        expected.add(trial.number, {"value": trial.value})


study = optuna.create_study(study_name="of-bad")
expected.note(name="study", states=["failed"], texts=["params/kind", "state"], lines=LINES)
try:
    study.optimize(objective, n_trials=len(ENDS), catch=ValueError, callbacks=[report, note, report, ChiplogCallback()])
finally:  # Optuna calls no callback for the last trial
    expected.write()
