"""Where the platform lacks fcntl: one line, and a run that takes everything."""

import logging

import pytest

from chiplog.recording.api import unsupported


def test_init_returns_a_run_that_records_nothing_and_warns_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unsupported, "_current", None)
    assert unsupported.current() is None
    with caplog.at_level(logging.WARNING, logger="chiplog"):
        first = unsupported.init("project", config={"lr": 0.1}, unknown=1)
        second = unsupported.init(config=object())
    assert len(caplog.records) == 1
    assert "nothing is recorded" in caplog.text
    assert first.config["lr"] == 0.1
    assert first.disabled
    assert unsupported.current() is second
    unsupported.log({"loss": 1.0}, 3, unknown=True)
    assert second.summary["loss"] == 1.0, "a script that reads it continues"
    unsupported.finish(1)
    unsupported.setup(True)
