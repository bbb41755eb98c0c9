"""Fixtures of all tests: directories and nodes. What a test started ends with it."""

import gc
import os
import random
import re
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import chiplog
from chiplog.recording.run import current_run
from chiplog_schemas.limit_settings import RANGES
from chiplog_schemas.paths import paths_for_root

pytest.register_assert_rewrite("tests.support")  # before the imports below: an assertion there prints its values

from tests.support.journals import Event, read_events
from tests.support.marks import MARKERS, has_none_of, marks_in, shared_by
from tests.support.node import Node, end_daemons
from tests.support.rounds import Rounds, rounds, share_the_minutes, write_report
from tests.support.run_report import write_run_report
from tests.support.tools import MARK, require
from tests.support.waiting import TIMES

if TYPE_CHECKING:
    from tests.support.index import Index

__all__ = ["Rounds", "rounds"]

_LAUNCHERS = ("TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_")
_SETTINGS = (
    "AGENT",
    "COLLECTOR",
    "MODE",
    "PROJECT",
    "RUN_ID",
    "GROUP",
    "LABEL",
    "PRIMARY",
    "GPU_DEVICE_IDS",
    "PARENT_RUN",
    "SETUP",
    "KEYS",
    *(variable.removeprefix("CHIPLOG_") for variable in RANGES),
)
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "CUDA_VISIBLE_DEVICES")
_directories = count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty directory. For pytest's own, the names of all former ones are searched: seconds for thousands of tests.

    Its name is no longer than that of pytest's, since sockets may be in it.
    """
    name = re.sub(r"\W", "_", request.node.name)[:25]
    return tmp_path_factory.mktemp(f"{name}-{next(_directories)}", numbered=False)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Take away what a launcher or a user may have set, and every run that a test leaves open."""
    for name in list(os.environ):
        is_ours = name.startswith("CHIPLOG_") and name.removeprefix("CHIPLOG_") in _SETTINGS
        if is_ours or name.startswith(_LAUNCHERS) or name in _RANK_VARIABLES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("CHIPLOG_DIR", str(tmp_path / "chiplog"))  # never ~/.chiplog
    monkeypatch.setenv("CHIPLOG_SURROUNDINGS", "0")  # tests count events; those of surroundings say so themselves
    monkeypatch.setattr(current_run, "opened_ids", set())  # they count the runs of a launch, which tests share
    yield
    if chiplog.run is not None:
        chiplog.finish()
        current_run._current = None


@pytest.fixture
def chiplog_dir(tmp_path: Path) -> Iterator[Path]:
    """A CHIPLOG_DIR of the test's own; daemons that were started for it are ended."""
    root = tmp_path / "chiplog"
    yield root
    if chiplog.run is not None:
        chiplog.finish()
    end_daemons(paths_for_root(root))


@pytest.fixture
def offline(chiplog_dir: Path) -> Callable[..., list[Event]]:
    """Return what reads the events of all offline runs."""
    return lambda kind=None: [e for e in read_events(chiplog_dir / "offline") if kind is None or e.kind == kind]


@pytest.fixture
def bare_node(chiplog_dir: Path) -> Iterator[Node]:
    """A node of which nothing runs yet."""
    node = Node(chiplog_dir)
    try:
        yield node
    finally:
        if chiplog.run is not None:
            chiplog.finish()
        node.stop()


@pytest.fixture
def node(bare_node: Node) -> Node:
    """A node whose collector answers."""
    return bare_node.start()


@pytest.fixture
def index(tmp_path: Path) -> Iterator["Index"]:
    """An index over a log of the test's own."""
    from tests.support.index import Index  # with DuckDB

    index = Index(tmp_path)
    yield index
    index.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", metavar="SEED", help="run modules, and the tests of each, in the order of this seed; 0: any"
    )


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's job in the background: ranks would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("COLUMNS", "LINES"):  # by readline in pytest's main process; they count more than a terminal's size
        os.environ.pop(name, None)
    config.addinivalue_line("markers", "soak(weight): has small counts in `make test`, and long ones in `make soak`")
    config.addinivalue_line("markers", f"{MARK}(tool, …): is left out where a tool is missing, and fails there in CI")
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_report_header(config: pytest.Config) -> str | None:
    return f"order of seed {config.option.shuffle}" if config.option.shuffle else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect modules without the garbage collector: it finds nothing, and takes a third of the CPU time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # nor do the tests search what stays until the end
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out, unread, what the lane would deselect: to import all modules takes longer than the pure tests."""
    is_module = collection_path.match("test_*.py")
    return True if is_module and has_none_of(collection_path, config.option.markexpr) else None


@pytest.hookimpl(trylast=True)  # after conftest.py of its folder, which may choose a worker
def pytest_itemcollected(item: pytest.Item) -> None:
    for name in sorted(marks_in(item.path, item.config.option.markexpr)):
        item.add_marker(name)
    if item.get_closest_marker("xdist_group") is None and (group := shared_by(item)) is not None:
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(tryfirst=True)  # before fixtures, which use the tools
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers(MARK):
        require(*mark.args)


@pytest.hookimpl(trylast=True)  # after -k and -m: the minutes are for those that run
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share_the_minutes(items)
    if TIMES != 1:
        for item in items:
            mark = item.get_closest_marker("timeout")
            limit_s = float(mark.args[0] if mark else config.getini("timeout"))
            item.add_marker(pytest.mark.timeout(TIMES * limit_s), append=False)
    if config.option.shuffle:
        chooser = random.Random(config.option.shuffle)
        modules = {path: chooser.random() for path in sorted({item.path for item in items})}
        items.sort(key=lambda item: (modules[item.path], random.Random(config.option.shuffle + item.nodeid).random()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    write_report(terminalreporter)
    write_run_report(terminalreporter.stats, int(exitstatus))


_exit_status = 0


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    global _exit_status
    _exit_status = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave without tearing the interpreter down: DuckDB's bindings would print their leaks behind pytest's summary."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_exit_status)
