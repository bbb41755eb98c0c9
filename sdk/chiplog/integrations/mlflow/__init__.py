"""MLflow code that records into chiplog unchanged, with MLFLOW_TRACKING_URI=chiplog://."""
