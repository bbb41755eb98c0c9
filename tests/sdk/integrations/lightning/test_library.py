"""Which of Lightning's packages is used."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

Import = Callable[[str], ModuleType]


def test_the_package_that_the_script_has_imported_is_used(lightning: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = lightning("library")
    assert library.package() is sys.modules["lightning.pytorch"]
    monkeypatch.delitem(sys.modules, "lightning.pytorch")
    monkeypatch.setitem(sys.modules, "pytorch_lightning", older := ModuleType("pytorch_lightning"))
    assert library.package() is older


def test_without_lightning_the_import_names_the_remedy(lightning: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = lightning("library")
    for name in ("lightning", "lightning.pytorch"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="needs Lightning, which is not installed; pip install lightning"):
        library.package()
