"""The model registry: MLflow's own, in one SQLite file of CHIPLOG_DIR, so of one host."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mlflow.exceptions import MlflowNotImplementedException
from mlflow.prompt.constants import IS_PROMPT_TAG_KEY
from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

from chiplog_schemas.paths import ensure_private_dir

FILE = "mlflow/registry.db"  # below CHIPLOG_DIR


class ChiplogRegistry(SqlAlchemyStore):  # type: ignore[misc]  # MLflow's classes have no types here
    """The registry of the models, without prompts.

    root: a CHIPLOG_DIR.
    """

    def __init__(self, root: Path) -> None:
        ensure_private_dir((root / FILE).parent)
        super().__init__(f"sqlite:///{quote(str(root / FILE))}")

    def create_registered_model(
        self, name: str, tags: Sequence[Any] | None = None, description: str | None = None, *more: Any, **named: Any
    ) -> Any:
        """Create a registered model. Raises MlflowException for a prompt, which MLflow keeps as one."""
        if any(tag.key == IS_PROMPT_TAG_KEY for tag in tags or ()):
            raise MlflowNotImplementedException(f"chiplog does not support prompts; {name!r:.80} is not registered")
        return super().create_registered_model(name, tags, description, *more, **named)
