"""chiplog's drop-in under the name `wandb`: the same module objects under both names."""

from chiplog.integrations import wandb as _drop_in
from chiplog.integrations.adapter.module_aliases import alias_package

alias_package(_drop_in.__name__, __name__)
