"""The callback for Hugging Face's Trainer. Importing this makes `TrainingArguments(report_to="chiplog")` work, too."""

from chiplog.integrations.huggingface.callback import ChiplogCallback
from chiplog.integrations.huggingface.trainer import prepare

prepare(ChiplogCallback)

__all__ = ["ChiplogCallback"]
