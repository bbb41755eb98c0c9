"""Optional libraries: loaded when needed, and named with the command that installs them."""

import sys

import pytest

from chiplog.media.encoding.libraries import load_library
from chiplog.values.media_value import MediaError


def test_a_library_is_imported_once() -> None:
    assert load_library("json", "json", "a text") is sys.modules["json"]


@pytest.mark.parametrize("name", ["json", "chiplog_has_no_such_module"])
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]  # Python then refuses the import
    with pytest.raises(MediaError) as caught:
        load_library(name, "Pillow", "an image")
    assert str(caught.value) == "an image needs Pillow, which is not installed; pip install 'chiplog[media]'"
