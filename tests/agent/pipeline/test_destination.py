"""Where a starting agent delivers: the option, else what was configured, else the environment of a training."""

from pathlib import Path

import pytest

from chiplog_agent.pipeline.destination import choose_destination
from chiplog_schemas.paths import Paths, ensure_private_dir
from chiplog_schemas.transport.collector_memory import remembered_collector

A, B = "ipc:///a.sock", "ipc:///b.sock"
BY_ENVIRONMENT = {"CHIPLOG_COLLECTOR": B, "CHIPLOG_NODE": "node-b"}


@pytest.fixture
def places(tmp_path: Path) -> Paths:
    found = Paths(tmp_path, tmp_path, tmp_path / "run")
    ensure_private_dir(found.agent)
    return found


def choose(places: Paths, option: str | None = None, *, embedded: bool = False, **environ: str) -> str | None:
    chosen = choose_destination(places, option, None, None, environ, embedded=embedded)
    chosen.keep(places)
    return chosen.address


def test_the_option_wins_over_the_variable_and_the_variable_over_nothing(places: Paths) -> None:
    assert choose(places) is None
    assert choose(places, **BY_ENVIRONMENT) == B
    assert choose(places, A, **BY_ENVIRONMENT) == A


def test_what_was_configured_is_kept_with_keys_and_node(places: Paths, caplog: pytest.LogCaptureFixture) -> None:
    choose_destination(places, A, "/operator/keys", "node-a", {}, embedded=False).keep(places)
    for embedded in (True, False):
        found = choose_destination(places, None, None, None, {}, embedded=embedded)
        assert (found.address, found.keys, found.node, found.is_configured) == (A, "/operator/keys", "node-a", True)
    found = choose_destination(places, None, None, None, BY_ENVIRONMENT, embedded=True)
    assert (found.address, found.node) == (A, "node-a"), "a training does not change what an operator configured"
    assert caplog.messages == [f"CHIPLOG_COLLECTOR {B} is not used: the spool is for {A}"]


def test_a_new_collector_is_remembered_and_the_former_is_named(places: Paths, caplog: pytest.LogCaptureFixture) -> None:
    choose(places, A)
    choose(places, A)
    assert caplog.messages == []
    assert choose(places, B) == B
    assert caplog.messages == [f"events go to {B} now, with all that wait; the spool was for {A}"]
    assert choose(places) == B
    assert choose(places, "local") is None
    assert remembered_collector(places.agent) is None
    assert "events go to the collector of this directory now" in caplog.messages[-1]


def test_the_collector_of_a_training_is_kept_until_another_one_is_named(places: Paths) -> None:
    assert choose(places, embedded=True, CHIPLOG_COLLECTOR=A) == A
    assert choose(places, embedded=True) == A
    assert choose(places, embedded=True, CHIPLOG_COLLECTOR=B) == B
