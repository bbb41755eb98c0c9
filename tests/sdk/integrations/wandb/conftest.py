"""What tests of the drop-in share."""

import pytest

from chiplog.integrations.wandb import errors
from chiplog_schemas.once import OnceLogger


@pytest.fixture(autouse=True)
def nothing_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each line be said in each test."""
    said = OnceLogger(lambda message, *given: errors.write_line(message % given), keys_max=1_000)
    monkeypatch.setattr(errors, "_once", said)
    monkeypatch.setattr(errors, "_stand_ins", {})
