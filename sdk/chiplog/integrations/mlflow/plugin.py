"""What MLflow's entry points name: functions that build a store once a URI asks for it."""

from typing import Any


def tracking_store(store_uri: str, artifact_uri: str | None = None) -> Any:
    """Return the tracking store of a `chiplog://` URI. Raises MlflowException for a wrong URI, or a too old MLflow."""
    from chiplog.integrations.mlflow.library import require_version
    from chiplog.integrations.mlflow.store import ChiplogStore

    require_version()
    return ChiplogStore(store_uri, artifact_uri)


def artifact_repository(artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None) -> Any:
    """Return the artifacts below a `chiplog://` URI. Raises MlflowException for a wrong URI."""
    from chiplog.integrations.mlflow.artifacts.artifact_repository import ChiplogArtifactRepository

    return ChiplogArtifactRepository(artifact_uri, tracking_uri, registry_uri)


def model_registry_store(store_uri: str, tracking_uri: str | None = None) -> Any:
    """Return the model registry of a `chiplog://` URI. Raises MlflowException for a wrong URI."""
    from chiplog.integrations.mlflow.addresses import parse_address
    from chiplog.integrations.mlflow.library import invalid
    from chiplog_schemas.process.recording_dir import recording_dir

    try:
        from chiplog.integrations.mlflow.models.registry import ChiplogRegistry

        address = parse_address(store_uri)
    except ValueError as error:
        raise invalid(str(error)) from None
    except ImportError as error:  # mlflow-skinny lacks SQLAlchemy
        message = f"MLflow's model registry needs a SQLAlchemy that fits it: {error}; pip install 'chiplog[mlflow]'"
        raise invalid(message) from None
    return ChiplogRegistry(recording_dir(address.directory))


def scorer_store(tracking_uri: str | None = None) -> Any:
    """Return MLflow's own access to scorers through the tracking store, which keeps none."""
    from mlflow.genai.scorers.registry import MlflowTrackingStore

    return MlflowTrackingStore(tracking_uri)
