"""The modules that have a SummaryWriter here: tensorboardX, and torch's if the package tensorboard is installed."""

from importlib.util import find_spec

MODULES = ["tensorboardX", *(["torch.utils.tensorboard"] if find_spec("tensorboard") else [])]
