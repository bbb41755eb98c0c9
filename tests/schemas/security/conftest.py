"""A directory of keys."""

import os
from pathlib import Path

import pytest

from chiplog_schemas.security.key_files import Keys


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    directory = tmp_path / "keys"
    (directory / "allowed").mkdir(mode=0o700, parents=True)
    os.chmod(directory, 0o700)
    return Keys(directory)
