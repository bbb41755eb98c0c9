"""Modules under the paths that they had."""

import importlib

import pytest

import chiplog
from chiplog.former_paths import FORMER


@pytest.mark.parametrize("former", [name for name, path in FORMER.items() if path])
def test_a_former_path_is_the_module_itself(former: str) -> None:
    assert importlib.import_module(former) is importlib.import_module(str(FORMER[former]))


def test_names_are_imported_by_their_former_paths() -> None:
    from chiplog.page.notebook import ui
    from chiplog.recording.config import Config
    from chiplog.recording.start import init

    from chiplog.recording.run import Run

    assert (ui, init, Run) == (chiplog.ui, chiplog.init, chiplog.Run)
    assert Config.__module__ == "chiplog.recording.sharing.config"


def test_other_names_of_a_former_package_are_unknown() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'chiplog\.query\.other'"):
        importlib.import_module("chiplog.query.other")
