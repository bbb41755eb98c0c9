"""A run under other names: aliases, names of other loggers, and the table of a notebook."""

import os
from typing import Any

import pytest

from chiplog.recording.run.other_names import attribute_of, html_of


def test_an_alias_is_the_runs_own_value(run: Any) -> None:
    assert run.run_name == run.name and run.pid == os.getpid() and run.primary is run.is_primary
    assert run.started_at.timestamp() == pytest.approx(run.start_time)


def test_a_name_of_another_logger_is_reported_and_a_name_of_none_raises(run: Any) -> None:
    assert attribute_of(run, "log_code") is not None
    assert sum(run._diagnostics.counts.values()) == 1
    with pytest.raises(AttributeError, match="no attribute 'qwertz'"):
        attribute_of(run, "qwertz")


def test_the_table_escapes_what_it_shows(run: Any) -> None:
    run.name = "<b>run</b>"
    assert "&lt;b&gt;run&lt;/b&gt;" in html_of(run) and "running, offline" in html_of(run)
    run.finish()
    assert "finished, offline" in html_of(run)
