"""The device of the calling thread, from a substitute for torch.cuda, which must not be initialised."""

import sys
from types import SimpleNamespace

import pytest

from chiplog.torch.current_device import CurrentDevice, current_device


def cuda(*, is_initialized: bool, **properties: str) -> SimpleNamespace:
    return SimpleNamespace(
        is_initialized=lambda: is_initialized,
        current_device=lambda: 3,
        get_device_properties=lambda number: SimpleNamespace(**properties),
    )


def test_there_is_none_before_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.cuda", raising=False)
    assert current_device() is None


def test_there_is_none_before_cuda_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda(is_initialized=False))  # type: ignore[arg-type]
    assert current_device() is None


def test_it_has_the_number_of_cuda_and_the_uuid_where_torch_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda(is_initialized=True, uuid="1f2e"))  # type: ignore[arg-type]
    assert current_device() == CurrentDevice(3, "1f2e")
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda(is_initialized=True))  # type: ignore[arg-type]
    assert current_device() == CurrentDevice(3, "")
