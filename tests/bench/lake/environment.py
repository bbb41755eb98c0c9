"""Where the other engines are: two environments in build/lake. Spark 3.5 and the newer client exclude each other."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ENGINES = (
    *("pysail==0.7.2", "pyspark-client==4.2.0", "pandas==2.3.3"),
    *("polars==2.1.0", "datafusion==55.0.0", "chdb==4.4.0", "pyarrow==26.0.1"),
)
SPARK_3 = ("pyspark==3.5.9", "setuptools==80.9.0")  # setuptools has distutils, which it imports
_FOLDER = ROOT / "build" / "lake"


def prepare(name: str, packages: tuple[str, ...]) -> str:
    """Return the path of the Python of an environment; make it first, where its versions are others.

    With the variable LATEST=1 it has the newest versions of the day.
    """
    is_latest = os.environ.get("LATEST", "") not in ("", "0")
    wanted = [package.partition("==")[0] for package in packages] if is_latest else list(packages)
    venv, python = _FOLDER / name, str(_FOLDER / name / "bin" / "python")
    stamp, stamped = venv / ".installed", " ".join([str(ROOT), *wanted, time.strftime("%Y-%m-%d") if is_latest else ""])
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == stamped:
        return python
    print(f"installing {', '.join(wanted)} into {venv.relative_to(ROOT)}", flush=True)
    shutil.rmtree(venv, ignore_errors=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", *wanted]
    for command in ([sys.executable, "-m", "venv", str(venv)], pip):
        if subprocess.run(command, stdin=subprocess.DEVNULL).returncode:
            sys.exit("chiplog: the environment of the engines cannot be made; the message is above")
    stamp.write_text(stamped, encoding="utf-8")
    return python
