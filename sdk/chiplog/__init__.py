"""chiplog: telemetry for distributed training. Every rank logs, nothing is lost, one SQL database answers.

import chiplog
run = chiplog.init(project="gpt", config={"lr": 3e-4})   # every rank calls this, unchanged
run.log({"train/loss": loss}, step=step)
run.finish()
"""

from typing import TYPE_CHECKING, Any

from chiplog.recording.run import Run
from chiplog.settings import __version__
from chiplog.start import current, finish, init, log, setup
from chiplog.values.metrics import Histogram

if TYPE_CHECKING:
    from chiplog.client import Client

    run: Run | None

__all__ = ["Histogram", "Run", "__version__", "connect", "finish", "init", "log", "run", "setup"]


def connect(url: str | None = None, **options: Any) -> "Client":
    """Return a client that answers SQL over all runs; see `chiplog.client.connect`."""
    from chiplog import client  # importing chiplog must not cost what a client needs

    return client.connect(url, **options)


def __getattr__(name: str) -> Any:
    """`chiplog.run` is the current run of this process, None before `init`."""
    if name == "run":
        return current()
    raise AttributeError(f"module 'chiplog' has no attribute {name!r}")
