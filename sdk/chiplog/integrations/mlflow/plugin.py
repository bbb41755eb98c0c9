"""What MLflow's entry points name: functions that build a store once a URI asks for it."""

from typing import Any


def tracking_store(store_uri: str, artifact_uri: str | None = None) -> Any:
    """Return the tracking store of a `chiplog://` URI. Raises MlflowException for a wrong URI, or a too old MLflow."""
    from chiplog.integrations.mlflow.library import require_version
    from chiplog.integrations.mlflow.store import ChiplogStore

    require_version()
    return ChiplogStore(store_uri, artifact_uri)
