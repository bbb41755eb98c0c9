"""The loggers and callbacks of chiplog for frameworks, on all ranks: each value is in SQL once."""

from collections.abc import Callable

import pytest

from tests.integrations.training import Training


@pytest.mark.parametrize(
    ("library", "script", "ranks"),
    [
        ("Lightning, ddp by torchrun", "lightning_chiplog.py", 2),
        ("Lightning, ddp", "lightning_chiplog.py", 1),
        ("Lightning, ddp_spawn", "lightning_spawn_chiplog.py", 1),
        ("Lightning, trained again", "lightning_again_chiplog.py", 1),
        ("Lightning, from a checkpoint", "lightning_resume_chiplog.py", 1),
        ("Lightning, after its Tuner", "lightning_tune_chiplog.py", 1),
        ("Transformers", "hf_chiplog.py", 2),
        ("Transformers, accelerate launch", "hf_launched_chiplog.py", 1),
        ("Transformers, from a checkpoint", "hf_resume_chiplog.py", 1),
        ("Transformers, trained again", "hf_again_chiplog.py", 1),
        ("Accelerate", "accelerate_chiplog.py", 2),
        ("Keras", "keras_chiplog.py", 2),
        ("Optuna", "optuna_chiplog.py", 1),
        ("Optuna, a run for each trial", "optuna_trials_chiplog.py", 1),
        ("SummaryWriter of torch, sync()", "tensorboard_chiplog.py torch", 1),
        ("SummaryWriter of tensorboardX, sync()", "tensorboard_chiplog.py tensorboardX", 1),
        ("SummaryWriter of chiplog", "tensorboard_chiplog.py chiplog", 2),
        ("Lightning, TensorBoardLogger, sync()", "tensorboard_lightning_chiplog.py", 1),
        ("Ray Train, a rank fails", "ray_train_chiplog.py", 1),
        ("Ray Tune", "ray_tune_chiplog.py", 1),
        ("Hydra, a multirun", "hydra_chiplog.py", 1),
        ("objects for configs", "configs_chiplog.py", 1),
    ],
)
def test_a_framework_logs_to_chiplog(
    training: Callable[[str], Training], library: str, script: str, ranks: int
) -> None:
    started = training(library)
    started.run(script, "run", "--", ranks=ranks)
    started.check()
