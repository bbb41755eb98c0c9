"""Load the C part of the SDK, if it is built. Without it, or with CHIPLOG_NATIVE=0, its Python functions are used."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any
from zlib import crc32

SWITCH = "CHIPLOG_NATIVE"


def load(switch: str | None) -> tuple[Any, str]:
    """Return the extension module, or None and the reason.

    Args:
        switch: The value of the variable CHIPLOG_NATIVE: `0` means the Python functions.
    """
    if switch == "0":
        return None, f"{SWITCH}=0"
    try:
        _hot_path = import_module("chiplog.native._hot_path")
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError)
        return None, "not built: no C compiler or no Python.h at installation" if is_missing else f"not usable: {error}"
    try:
        source_crc = crc32((Path(__file__).parent / "hot_path.c").read_bytes())
    except OSError:  # a package without the source
        return _hot_path, ""
    if source_crc != getattr(_hot_path, "SOURCE_CRC", None):  # absent before builds were compared
        return None, "built of another source; run scripts/build_native.py, or install chiplog again"
    return _hot_path, ""


hot_path, why_not = load(os.environ.get(SWITCH))
