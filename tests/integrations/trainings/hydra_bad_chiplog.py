"""A multirun of Hydra with two of chiplog's callbacks, whose second job runs out of memory."""

import sys

import hydra
from expected import Expected
from hydra.core.config_store import ConfigStore

import chiplog

ConfigStore.instance().store("config", {"batch": 2})
expected = Expected("hydra-core")


@hydra.main(version_base=None, config_name="config")
def main(config) -> None:
    values = {"none": None, "loss": config.batch / 4}
    chiplog.log(values, step=0)
    expected.add(0, {"loss": config.batch / 4})
    if config.batch == 8:
        expected.note(
            runs=2,
            names=[f"hydra_bad_chiplog batch={batch}" for batch in (4, 8)],
            states=["finished", "failed"],
            groups=["swept"],
            events={"output_dir": 2},
            lines=[],
        )
        expected.write()
        raise MemoryError("no room for the batch")


sys.argv += ["--multirun", "batch=4,8", "hydra.sweep.dir=swept"]
sys.argv += [f"+hydra.callbacks.{name}._target_=chiplog.integrations.hydra.ChiplogCallback" for name in ("a", "b")]
main()
