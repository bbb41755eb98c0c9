"""W&B's callback for Stable-Baselines3: `from wandb.integration.sb3 import WandbCallback`."""

import os

from stable_baselines3.common.callbacks import BaseCallback

from chiplog.integrations.wandb.callbacks.library_callbacks import LibraryCallback
from chiplog.integrations.wandb.errors import warn
from chiplog.safety.boundary import never_raises

_LOGS = ("gradients", "parameters", "all", None)


class WandbCallback(LibraryCallback, BaseCallback):  # type: ignore[misc]  # mypy has no types of it
    """Record the hyperparameters of a model, and if asked for its gradients and files.

    Values of the training come by `init(sync_tensorboard=True)` and the model's `tensorboard_log=`.

    Args:
        verbose: As of BaseCallback.
        model_save_path: A directory for the model, which is saved at the end, also into the run; None: it is not saved.
        model_save_freq: Steps from one file to the next; 0: at the end only.
        gradient_save_freq: Backward passes from one histogram to the next; 0: none.
        log: Histograms of gradients, parameters or all; None: of nothing.

    """

    _library = "Stable-Baselines3"

    def __init__(
        self,
        verbose: int = 0,
        model_save_path: str | None = None,
        model_save_freq: int = 0,
        gradient_save_freq: int = 0,
        log: str | None = "all",
    ) -> None:
        super().__init__(verbose)
        self._run()
        if log not in _LOGS:
            warn(f"WandbCallback(log={log!r}) must be one of gradients, parameters, all and None; it logs all")
            log = "all"
        if model_save_freq > 0 and model_save_path is None:
            warn("WandbCallback(model_save_freq=) saves nothing without model_save_path=")
        self.model_save_path = model_save_path
        self.model_save_freq = model_save_freq
        self.gradient_save_freq = gradient_save_freq
        self.log = log
        if model_save_path is not None:
            self.path = os.path.join(model_save_path, "model.zip")

    @never_raises("_init_callback")
    def _init_callback(self) -> None:
        run = self._run()
        if run is None:
            return
        found = {"algo": type(self.model).__name__}
        for key, value in vars(self.model).items():
            if key not in run.config:
                found[key] = value if type(value) in (float, int, str) else str(value)
        run.config.setdefaults(found)
        if self.gradient_save_freq > 0:
            run.watch(self.model.policy, log=self.log, log_freq=self.gradient_save_freq)

    def _on_step(self) -> bool:
        if self.model_save_freq > 0 and self.n_calls % self.model_save_freq == 0:
            self.save_model()
        return True

    def _on_training_end(self) -> None:
        self.save_model()

    @never_raises("save_model")
    def save_model(self) -> None:
        """Save the model below model_save_path, and into the run."""
        if self.model_save_path is None:
            return
        os.makedirs(self.model_save_path, exist_ok=True)
        self.model.save(self.path)
        run = self._run()
        if run is not None:
            run.save(self.path, base_path=self.model_save_path)
