"""The W&B integrations of libraries, unchanged, by `chiplog run --as wandb`: each value is in SQL once."""

from collections.abc import Callable

import pytest

from tests.integrations.training import Training

_AS_WANDB = ("run", "--as", "wandb", "--")


@pytest.mark.parametrize(
    ("library", "script", "ranks"),
    [
        ("Accelerate", "accelerate_wandb.py", 2),
        ("Transformers", "transformers_wandb.py", 2),
        ("Lightning", "lightning_wandb.py", 2),
        ("Lightning, without torchrun", "lightning_wandb.py", 1),
        ("Lightning, ddp_spawn", "lightning_spawn_wandb.py", 1),
        ("Optuna", "optuna_wandb.py", 1),
        ("Optuna, a run for each trial", "optuna_multirun_wandb.py", 1),
        ("Keras", "keras_wandb.py", 1),
        ("Gymnasium, as CleanRL's scripts", "cleanrl_wandb.py", 2),
        ("Transformers, Lightning, Accelerate in one run", "one_run_wandb.py", 1),
        ("Ray Train, two nodes", "ray_train_wandb.py", 1),
        ("Ray, tasks and actors", "ray_tasks_wandb.py", 1),
        ("Ray Tune, WandbLoggerCallback", "ray_tune_wandb.py", 1),
        ("Ray Tune, setup_wandb", "ray_setup_wandb.py", 1),
        ("gymnasium", "gymnasium_wandb.py", 1),
        ("Stable-Baselines3", "sb3_wandb.py", 1),
        ("XGBoost", "xgboost_wandb.py", 1),
        ("LightGBM", "lightgbm_wandb.py", 1),
    ],
)
def test_a_library_logs_to_chiplog_as_it_logs_to_wandb(
    training: Callable[[str], Training], library: str, script: str, ranks: int
) -> None:
    started = training(library)
    started.run(script, *_AS_WANDB, ranks=ranks)
    started.check()
