"""MLflow's logged models, datasets, inputs and outputs, and its model registry."""
