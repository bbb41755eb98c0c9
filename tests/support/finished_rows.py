"""The values that a framework's callback has recorded in files."""

from pathlib import Path

from chiplog.recording.run import current_run
from tests.support.journals import read_events
from tests.support.sdk_events import numbers


def finished_rows(directory: Path) -> list[tuple[str, int, float]]:
    """Finish the run that is open and return its values; of a speed its sign."""
    run = current_run.current()
    assert run is not None
    run.finish()
    rows = numbers(read_events(directory / "offline"))
    return [(key, step, float(value > 0) if key.endswith("_per_s") else value) for key, step, value in rows]
