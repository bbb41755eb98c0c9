"""The functions of the package act on the current run, and do nothing without one."""

import chiplog
from chiplog.recording.run import current_run
from tests.support.sdk_events import numbers


def test_the_module_level_names_are_those_of_the_current_run(chiplog_dir, offline, caplog, monkeypatch) -> None:
    monkeypatch.setattr(current_run, "_current", None)
    monkeypatch.setattr(current_run, "_warned_no_run", False)
    assert chiplog.run is None
    chiplog.log({"x": 1.0})
    chiplog.log({"x": 1.0})
    chiplog.finish()
    assert [record.getMessage() for record in caplog.records] == [
        "chiplog: log() without a run; call chiplog.init() first"
    ]
    run = chiplog.init(mode="offline", capture_console=False)
    assert chiplog.run is run
    chiplog.log({"x": 2.0}, step=4)
    chiplog.finish()
    assert numbers(offline()) == [("x", 4, 2.0)]
