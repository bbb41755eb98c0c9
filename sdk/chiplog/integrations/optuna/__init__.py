"""The callback for Optuna: `from chiplog.integrations.optuna import ChiplogCallback`."""

from chiplog.integrations.optuna.callback import ChiplogCallback

__all__ = ["ChiplogCallback"]
