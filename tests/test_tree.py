"""The shape of tests/: each module has its own test module, and no test module imports another."""

from pathlib import Path

from tests.support.marks import imports_of, marks_of

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PACKAGES = {"sdk": "chiplog", "agent": "chiplog_agent", "collector": "chiplog_collector", "schemas": "chiplog_schemas"}
# Modules that other test modules cover, and that have none of their own yet. This list may only become shorter.
UNTESTED = [
    "agent/cli.py",
    "agent/pipeline/collector_supervisor.py",
    "agent/stats/gpu_threads.py",
    "agent/stats/sampler.py",
    "sdk/cli/canary.py",
    "sdk/cli/logs.py",
    "sdk/cli/output.py",
    "sdk/cli/run_page.py",
    "sdk/cli/runs.py",
    "sdk/cli/sql.py",
    "sdk/cli/status.py",
    "sdk/cli/sync.py",
    "sdk/console/capture.py",
    "sdk/console/helper_main.py",
    "sdk/console/line_journal.py",
    "sdk/console/redirect.py",
    "sdk/console/relay.py",
    "sdk/identity/rendezvous.py",
    "sdk/ops/daemons.py",
    "sdk/ops/health_checks.py",
    "sdk/recording/collector_lookup.py",
    "sdk/recording/recorder.py",
]


def own_tests_of(module: str) -> Path:
    """Return where the tests of `agent/pipeline/batcher.py` are: tests/agent/pipeline/test_batcher.py."""
    return TESTS / Path(module).with_name(f"test_{Path(module).name}")


def modules() -> list[str]:
    return [
        f"{folder}/{path.relative_to(ROOT / folder / package)}"
        for folder, package in PACKAGES.items()
        for path in sorted((ROOT / folder / package).rglob("*.py"))
        if not path.stem.startswith("_")
    ]


def test_every_module_has_its_own_test_module() -> None:
    missing = [name for name in modules() if not own_tests_of(name).is_file()]
    assert sorted(set(missing) - set(UNTESTED)) == [], "add tests/…/test_NAME.py; the list UNTESTED does not grow"
    assert sorted(set(UNTESTED) - set(missing)) == [], "these have tests now or are gone: remove them from UNTESTED"


def test_the_marks_of_a_test_module_follow_from_what_it_imports() -> None:
    assert marks_of(TESTS / "agent/pipeline/test_batcher.py") == {"pure"}
    assert marks_of(TESTS / "schemas/process/test_daemon.py") == {"process"}
    assert marks_of(TESTS / "fault/test_kill.py") == {"process", "slow"}
    assert marks_of(TESTS / "collector/views/test_views.py") == set()  # DuckDB, by a helper


def test_no_module_imports_a_test_module_or_fixtures() -> None:
    def is_a_test_module(name: str) -> bool:
        parts = name.split(".")
        return parts[0] == "tests" and any(part.startswith("test_") or part == "conftest" for part in parts)

    paths = sorted(TESTS.rglob("*.py"))
    found = {str(path.relative_to(TESTS)): sorted(filter(is_a_test_module, imports_of(path))) for path in paths}
    assert {name: imports for name, imports in found.items() if imports} == {}
