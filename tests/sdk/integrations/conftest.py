"""A fixture of the tests of all integrations."""

from pathlib import Path

import pytest

from chiplog.recording.run import current_run


@pytest.fixture
def no_run(chiplog_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let no run be open, and the next ones record in files; return their directory."""
    monkeypatch.setenv("CHIPLOG_MODE", "offline")
    monkeypatch.setattr(current_run, "_current", None)
    return chiplog_dir
