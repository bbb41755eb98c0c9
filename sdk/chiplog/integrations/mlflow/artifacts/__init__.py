"""MLflow's artifacts: files of a run that any label saves."""
