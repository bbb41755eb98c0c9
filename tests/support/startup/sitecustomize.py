"""What each Python of a training runs first; Python imports it by its name from PYTHONPATH."""

import torch_exit  # noqa: F401  # it registers what the exit does
