"""The callback for Hydra: `_target_: chiplog.integrations.hydra.ChiplogCallback`."""

from chiplog.integrations.hydra.callback import ChiplogCallback

__all__ = ["ChiplogCallback"]
