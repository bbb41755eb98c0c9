"""Which word means which mode, by argument and by variable: an unknown one never lets data leave the machine."""

import logging

import pytest

import chiplog
from tests.support.safeguard import proves

KNOWN = [
    ("OFFLINE", "offline"),
    ("Offline ", "offline"),
    ("dryrun", "offline"),
    ("DryRun", "offline"),
    ("run", "online"),
    ("Shared", "online"),
    ("ONLINE", "online"),
    ("Disabled", "disabled"),
    ("Rank0", "online"),
]


@pytest.fixture
def nowhere(chiplog_dir, monkeypatch):
    """Name an agent that no process listens for, so that an online run starts none."""
    monkeypatch.setenv("CHIPLOG_AGENT", f"ipc://{chiplog_dir}/nowhere.sock")


@proves("mode-without-case", "modes are compared without their case", part=".lower()")
@pytest.mark.parametrize(("word", "mode"), KNOWN)
@pytest.mark.parametrize("by", ["argument", "variable"])
def test_a_mode_is_known_in_any_case_and_by_the_names_of_wandb(nowhere, monkeypatch, caplog, word, mode, by) -> None:
    if by == "variable":
        monkeypatch.setenv("CHIPLOG_MODE", word)
    with chiplog.init(mode=word if by == "argument" else None, capture_console=False) as run:
        assert run.mode == mode
    assert not [record for record in caplog.records if "cannot be reached" not in record.getMessage()]


@proves("unknown-mode-is-offline", "an unknown mode is offline", part='"offline"', new='"online"')
@pytest.mark.parametrize(
    ("argument", "variable", "named"), [("offlin", "", "offlin"), (None, "onlin", "onlin"), ("rank0", "of", "of")]
)
def test_an_unknown_mode_is_offline_and_an_error_that_names_the_remedy(
    chiplog_dir, nowhere, monkeypatch, caplog, argument, variable, named
) -> None:
    monkeypatch.setenv("CHIPLOG_MODE", variable)
    with chiplog.init(mode=argument, capture_console=False) as run:
        assert run.mode == "offline"
    (record,) = [record for record in caplog.records if "mode" in record.getMessage()]
    assert record.levelno == logging.ERROR
    assert f"mode {named!r} is unknown" in record.getMessage()
    assert "chiplog sync" in record.getMessage()
    assert list((chiplog_dir / "offline").iterdir())


def test_rank0_by_argument_leaves_the_rest_to_the_variable(nowhere, monkeypatch) -> None:
    monkeypatch.setenv("CHIPLOG_MODE", "OFFLINE")
    with chiplog.init(mode="RANK0", capture_console=False) as run:
        assert run.mode == "offline"
    for name, value in {"RANK": 1, "LOCAL_RANK": 1, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    with chiplog.init(mode="RANK0", capture_console=False) as run:
        assert run.mode == "disabled"
