"""The environment of the libraries: chiplog beside them as users have it, in build/integrations.

W&B's own library is in a directory of its own there, which only trainings that compare with it put on their path.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = (
    *("accelerate", "gymnasium", "hydra-core", "jsonargparse", "keras", "lightgbm", "lightning", "mlflow"),
    *("optuna", "optuna-integration", "pydantic", "pyspark", "ray[tune]"),
    *("stable-baselines3", "tensorboard", "tensorboardX", "torch", "trackio", "transformers", "xgboost-cpu"),
)
OLDEST_MLFLOW = ("mlflow==3.6.0", "mlflow-skinny==3.6.0", "mlflow-tracing==3.6.0")
_VENV = ROOT / "build" / "integrations"
_CONSTRAINTS = "tests/integrations/constraints.txt"  # relative: pip splits PIP_CONSTRAINT at blanks
_STAMP = _VENV / ".installed"


def wandb_directory(python: str) -> Path:
    """Return where W&B's own library is, of the environment of a Python."""
    return Path(python).parents[1] / "wandb"


def oldest_mlflow_directory(python: str) -> Path:
    """Return where the oldest MLflow is that chiplog's store works with; it takes the libraries that it needs there."""
    return Path(python).parents[1] / "mlflow-oldest"


def prepare() -> str:
    """Return the path of its Python; make it first, where its versions are not those of constraints.txt.

    With the variable LATEST=1 it has the newest versions of the day.
    """
    is_latest = os.environ.get("LATEST", "") not in ("", "0")
    python = str(_VENV / "bin" / "python")
    decides = b"".join((ROOT / name).read_bytes() for name in (_CONSTRAINTS, "pyproject.toml"))
    versions = time.strftime("%Y-%m-%d") if is_latest else hashlib.sha256(decides).hexdigest()
    wanted = " ".join([str(ROOT), versions, *LIBRARIES, "wandb", *OLDEST_MLFLOW])
    if _STAMP.is_file() and _STAMP.read_text(encoding="utf-8") == wanted:
        return python
    print(f"installing {', '.join(LIBRARIES)} into {_VENV.relative_to(ROOT)}", flush=True)
    shutil.rmtree(_VENV, ignore_errors=True)
    environ = dict(os.environ)
    if not is_latest:
        environ["PIP_CONSTRAINT"] = f"{environ.get('PIP_CONSTRAINT', '')} {_CONSTRAINTS}".strip()
    pip = [python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", str(_VENV)],
        [*pip, "--editable", ".[media]", *LIBRARIES],
        [*pip, "--target", str(wandb_directory(python)), "wandb"],
        [*pip, "--no-deps", "--target", str(oldest_mlflow_directory(python)), *OLDEST_MLFLOW],
    ):
        if OLDEST_MLFLOW[0] in command:
            environ.pop("PIP_CONSTRAINT", None)
        if subprocess.run(command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL).returncode:
            sys.exit("chiplog: the environment of the integrations cannot be made; the message is above")
    _STAMP.write_text(wanted, encoding="utf-8")
    return python
