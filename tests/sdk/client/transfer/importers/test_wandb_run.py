"""Files that are no runs of W&B are one line each. tests/integrations/test_import_wandb.py reads real runs."""

import importlib.util
import struct
import zlib
from pathlib import Path

import pytest

from chiplog_client.transfer.importers.formats import Options, guess_format
from chiplog_client.transfer.importers.imported_run import ImporterError
from chiplog_client.transfer.importers.wandb_run import read

_HEADER = b":W&B\xe1\xbe\x00"


def fragment(payload: bytes) -> bytes:
    return struct.pack("<IHB", zlib.crc32(payload, zlib.crc32(b"\1")), len(payload), 1) + payload


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "run-x.wandb: the file is empty: its run was killed at once, or the copy is incomplete"),
        (b"PK\3\4 no run", "which no .wandb file does; name the run-….wandb of a run"),
        (_HEADER[:-1] + b"\7", "run-x.wandb: it has version 7 of W&B's format, and 0 is known; update chiplog"),
    ],
)
def test_an_empty_foreign_or_newer_file_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run-x.wandb"
    path.write_bytes(content)
    for given in (path, tmp_path):
        assert guess_format(given) == "wandb"
        with pytest.raises(ImporterError) as error:
            list(read(given, Options()))
        assert message in str(error.value) and "\n" not in str(error.value)


def test_a_folder_without_runs_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "wandb" / "offline-run-1-x").mkdir(parents=True)
    assert guess_format(tmp_path) is None
    with pytest.raises(ImporterError, match=r"no run-.*wandb in it; name the folder of a run"):
        list(read(tmp_path, Options()))


def test_a_missing_library_or_a_file_without_a_run_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run-x.wandb").write_bytes(_HEADER + fragment(bytes.fromhex("0812920100")))
    has_wandb = importlib.util.find_spec("wandb") is not None
    expected = (
        "it names no run: the run was killed at its start" if has_wandb else r"pip install 'chiplog\[import-wandb\]'"
    )
    with pytest.raises(ImporterError, match=expected):
        list(read(tmp_path, Options()))
