"""The callback for Keras, with any backend: `from chiplog.integrations.keras import ChiplogCallback`."""

from chiplog.integrations.keras.callback import ChiplogCallback

__all__ = ["ChiplogCallback"]
