"""What goes wrong around the loggers and callbacks for frameworks: one line each, and each value is in SQL once."""

from collections.abc import Callable

import pytest

from tests.integrations.training import Training


@pytest.mark.parametrize(
    ("library", "script", "ranks", "exit_code"),
    [
        ("Lightning, bad input", "lightning_bad_chiplog.py", 1, 0),
        ("Lightning, out of host memory", "lightning_oom_chiplog.py host", 2, 1),
        ("Lightning, out of GPU memory", "lightning_oom_chiplog.py cuda", 2, 1),
        ("Lightning, killed", "lightning_oom_chiplog.py kernel", 2, 1),
        ("Transformers, bad input", "hf_bad_chiplog.py", 1, 1),
        ("Transformers, out of host memory", "hf_oom_chiplog.py host", 2, 1),
        ("Transformers, out of GPU memory", "hf_oom_chiplog.py cuda", 2, 1),
        ("Transformers, killed", "hf_oom_chiplog.py kernel", 2, 1),
        ("Accelerate, bad input", "accelerate_bad_chiplog.py", 1, 0),
        ("Keras, bad input", "keras_bad_chiplog.py", 1, 1),
        ("Optuna, bad input", "optuna_bad_chiplog.py", 1, 1),
        ("Hydra, bad input", "hydra_bad_chiplog.py", 1, 1),
        ("SummaryWriter of torch, bad input", "tensorboard_bad_chiplog.py torch", 1, 0),
        ("SummaryWriter of chiplog, bad input", "tensorboard_bad_chiplog.py chiplog", 1, 0),
    ],
)
def test_bad_input_is_one_line_and_loses_nothing(
    training: Callable[[str], Training], library: str, script: str, ranks: int, exit_code: int
) -> None:
    started = training(library)
    started.run(script, "run", "--", ranks=ranks, exit_code=exit_code)
    started.check()
