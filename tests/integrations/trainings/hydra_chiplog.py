"""chiplog's callback for Hydra: a multirun of two jobs, which log by `chiplog.log()`."""

import sys
from dataclasses import dataclass, field

import hydra
from expected import Expected
from hydra.core.config_store import ConfigStore

import chiplog

BATCHES = (4, 8)


@dataclass
class Model:
    width: int = 16
    twice: int = "${model.width}"


@dataclass
class Config:
    batch: int = 2
    model: Model = field(default_factory=Model)


ConfigStore.instance().store("config", Config)


@hydra.main(version_base=None, config_name="config")
def main(config) -> None:
    for step in range(3):
        chiplog.log({"loss": config.batch / 2**step}, step=step)


sys.argv += ["--multirun", f"batch={','.join(map(str, BATCHES))}", "hydra.sweep.dir=swept"]
sys.argv += ["+hydra.callbacks.c._target_=chiplog.integrations.hydra.ChiplogCallback", "+hydra.callbacks.c.tags=[tiny]"]
main()
expected = Expected("hydra-core")
for batch in BATCHES:
    for step in range(3):
        expected.add(step, {"loss": batch / 2**step})
expected.note(
    runs=2,
    names=[f"hydra_chiplog batch={batch}" for batch in BATCHES],
    groups=["swept"],
    tags=["tiny"],
    config={"model": {"width": 16, "twice": 16}},
    events={"output_dir": 2},
)
expected.write()
