"""The functions and attributes of the package itself, and the names of other loggers that it does not have."""

import argparse
import copy
import inspect
import json
import os
import pickle
import pydoc
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import chiplog
from chiplog.identity.process_info import node_name
from chiplog.recording.api import functions as api
from chiplog.recording.api.disabled import DisabledRun
from chiplog.safety import foreign_names
from chiplog_client.async_client import AsyncClient
from chiplog_client.client import Client, Result
from chiplog_schemas.codec import unpack
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.once import OnceLogger
from tests.support.hand_written import empty_database
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

PACKAGE = Path(chiplog.__file__).parent
OF_A_DICT = {"clear", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"}
DOCUMENTED = {
    "Run": {
        *("alert", "attempt", "config", "data", "define_metric", "dir", "disabled", "finish", "group", "id"),
        *("is_primary", "job_type", "label", "local_rank", "log", "mode", "name", "notes", "offline", "phase"),
        *("project", "rank", "restart_count", "resumed", "run_id", "save", "step", "summary", "tags", "url", "watch"),
        *("log_artifact", "log_model", "use_artifact", "world_size"),
    },
    "Config": {*OF_A_DICT, "as_dict", "setdefaults"},
    "Summary": OF_A_DICT,
    "AsyncClient": {"close", "sql", "stream"},
    "Client": {"close", "delete_runs", "edit_run", "read_file", "restore_producers", "save_view", "sql", "stream"},
    "Result": {"arrow", "columns", "df", "pl", "relation", "rows", "tuples", "wall_times"},
}
PUBLIC = DOCUMENTED["Run"]
CALLS = {name for name in PUBLIC if inspect.isfunction(getattr(chiplog.Run, name))}


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_once", OnceLogger(api._log.warning, keys_max=100))
    monkeypatch.setattr(api, "_stand_ins", {})


@pytest.fixture
def run(chiplog_dir: Path) -> chiplog.Run:
    return chiplog.init("p", run_id="r", mode="offline", capture_console=False)


@pytest.mark.parametrize("name", sorted(DOCUMENTED))
def test_the_public_attributes_of_a_class_are_the_documented_ones(chiplog_dir: Path, name: str) -> None:
    run = chiplog.init("p", run_id="r", mode="offline", capture_console=False)
    with pa.BufferOutputStream() as sink, pa.ipc.new_stream(sink, pa.schema([("a", pa.int64())])) as stream:
        stream.close()
    objects = {
        "Run": run,
        "Config": run.config,
        "Summary": run.summary,
        "AsyncClient": AsyncClient(Client("ipc:///nowhere/query.sock", None)),
        "Client": Client("ipc:///nowhere/query.sock", None),
        "Result": Result(sink.getvalue().to_pybytes()),
    }
    found = objects[name]
    assert type(found).__name__ == name
    assert {attribute for attribute in dir(found) if not attribute.startswith("_")} == DOCUMENTED[name]
    own = {attribute for attribute in vars(type(found)) if not attribute.startswith("_")}
    assert {attribute for attribute in own if not inspect.getdoc(getattr(type(found), attribute))} == set()


FUNCTIONS = sorted(CALLS | {"connect", "connect_async", "init", "register_store", "run_history", "runs", "setup", "ui"})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_shows_a_clean_signature_and_an_example(name: str) -> None:
    calls = [getattr(chiplog, name)] + ([getattr(chiplog.Run, name)] if name in CALLS else [])
    for call in calls:
        shown = inspect.signature(call)
        kinds = {parameter.kind for parameter in shown.parameters.values()}
        assert kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} == set()
        assert "mappingproxy" not in pydoc.render_doc(call)
        assert ">>> " in (inspect.getdoc(call) or "")


def test_the_signatures_that_the_contract_names() -> None:
    for log in (chiplog.log, chiplog.Run.log):
        assert [(p.name, p.default) for p in inspect.signature(log).parameters.values() if p.name != "self"] == [
            ("data", inspect.Parameter.empty),
            ("step", None),
        ]
    connect = inspect.signature(chiplog.connect).parameters.values()
    assert [(p.name, p.default, p.kind.name) for p in connect] == [
        ("url", None, "POSITIONAL_OR_KEYWORD"),
        ("dir", None, "KEYWORD_ONLY"),
    ]


@pytest.mark.parametrize("name", sorted(CALLS))
def test_each_method_of_a_run_is_a_function_of_the_package_with_the_same_arguments(name: str) -> None:
    def named(call: object) -> list[tuple[str, object]]:
        parameters = inspect.signature(call).parameters.values()  # type: ignore[arg-type]
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return [(p.name, p.default) for p in parameters if p.name != "self" and p.kind not in kinds]

    assert named(getattr(chiplog, name)) == named(getattr(chiplog.Run, name))


def test_no_module_hides_a_public_name_and_no_stand_in_hides_a_module() -> None:
    modules = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    public = set(chiplog.__all__) | PUBLIC - {"dir", "id"}
    assert modules & public == set()
    assert foreign_names.MODULE_NAMES & (modules | set(chiplog.__all__)) == set()
    assert foreign_names.RUN_NAMES & set(dir(chiplog.Run)) == set()


@proves("renamed-run-recorded", "a renamed run is recorded")
def test_what_scripts_assign_is_recorded(run: chiplog.Run, offline) -> None:
    wandb = chiplog
    wandb.config.lr = 3
    wandb.config.update({"depth": 2}, allow_val_change=True)
    wandb.config.setdefaults({"lr": 5, "width": 7})
    wandb.config = {"optimizer": "adam"}
    wandb.run.name = "baseline"
    wandb.run.tags += ("night",)
    wandb.run.notes = "two\nlines"
    wandb.summary["best"] = 1
    wandb.define_metric("loss", summary="min")
    wandb.alert("hot", "very")
    wandb.finish()
    said: dict[str, str] = {}
    for event in offline(EventKind.CONFIG):
        said |= event.fields["values"]
    assert said == {"lr": "3", "depth": "2", "width": "7", "optimizer": '"adam"'}
    identity = offline(EventKind.IDENTITY)[-1].fields["identity"]
    assert (identity["name"], identity["tags"], identity["notes"]) == ("baseline", ["night"], "two\nlines")
    assert offline(EventKind.SUMMARY)[0].fields["values"] == {"best": "1"}
    assert [event.fields["name"] for event in offline(EventKind.DEFINE)] == ["loss"]
    assert [e.fields["message"] for e in offline(EventKind.NOTICE) if e.fields["notice"] == "alert"] == ["hot"]


def test_a_renamed_run_has_that_name_in_sql(node) -> None:
    run = chiplog.init("p", run_id="renamed", name="first", dir=node.root, capture_console=False)
    run.name = "second"
    run.finish()
    (row,) = node.until("SELECT name FROM runs WHERE run_id = 'renamed' AND name = 'second'")
    assert row["name"] == "second"


IN_DUCKDB = """
import duckdb
from chiplog.safety.background_threads import is_exiting, start_thread
connection = duckdb.connect()
is_begun = []
def ask():
    while not is_exiting.is_set():
        connection.sql("SELECT sum(range) FROM range(20000)").fetchall()
        is_begun.append(1)
start_thread(ask, name="asking")
while not is_begun: pass
"""


@proves("exit-waits-for-native-threads", "the end of the process waits for threads in native code")
@pytest.mark.full
def test_a_process_ends_well_while_a_thread_of_chiplog_is_in_duckdb() -> None:
    for _ in range(8):
        done = subprocess.run([sys.executable, "-c", IN_DUCKDB], capture_output=True, text=True, timeout=WAIT_S)
        assert (done.returncode, done.stderr) == (0, "")


def test_attributes_that_scripts_read_exist(run: chiplog.Run) -> None:
    assert (chiplog.run.name, chiplog.run.project, chiplog.run.url, chiplog.run.tags) == (None, "p", None, ())
    assert (chiplog.run.offline, chiplog.run.disabled, chiplog.run.restart_count, chiplog.run.attempt) == (
        True,
        False,
        0,
        None,
    )
    assert Path(chiplog.run.dir).is_dir()
    assert chiplog.config is run.config
    assert chiplog.summary is run.summary


@proves("foreign-name-does-nothing", "a name of another logger does nothing in place of raising", condition=True)
def test_names_of_other_loggers_do_nothing_and_warn_once(run: chiplog.Run, caplog, offline) -> None:
    table = chiplog.JoinedTable(columns=["a"])
    table.add_data(1)
    assert not chiplog.JoinedTable(columns=["b"]).data
    assert list(chiplog.Api().runs("x")) == []
    assert not isinstance(run, chiplog.Molecule)
    with chiplog.start_run() as other:
        other.info.run_id.upper()
    run.log_code("model.pt")
    run.log({"table": table, "loss": 1.0})

    class Mine(chiplog.JoinedTable):
        def __init__(self, rows: int) -> None:
            super().__init__()
            self.rows = rows

    @chiplog.trace
    def traced() -> int:
        return 5

    assert (Mine(3).rows, traced()) == (3, 5)
    copy.deepcopy(table)
    names = [r.getMessage().split()[1] for r in caplog.records if "is not available" in r.getMessage()]
    expected = ["JoinedTable", "Api", "Molecule", "start_run"]
    assert names == [*(f"chiplog.{name}" for name in expected), "run.log_code", "chiplog.trace"]
    run.finish()
    rows = [e.fields["body"]["key"] for e in offline(EventKind.NOTICE) if e.fields["notice"] == "bad_value"]
    assert "chiplog.JoinedTable" in rows


# The public names of the runs of wandb 0.31 and mlflow 3.17, by dir().
OF_OTHER_RUNS = """
    alert config config_static define_metric dir disabled display entity finish finish_artifact get_project_url get_url
    group id info job_type join link_artifact link_model log log_artifact log_code log_model mark_preempting name notes
    offline path pin_config_keys project project_name project_url restore resumed save settings start_time starting_step
    status step summary sweep_id sweep_url sync_dir tags to_html unwatch upsert_artifact url use_artifact use_model
    watch write_logs data from_dictionary from_proto inputs outputs to_dictionary to_proto
"""
OF_VARIABLES = "dir agent collector mode project run_id group label primary gpu_device_ids node"


def test_a_run_has_every_name_of_arguments_columns_variables_and_other_loggers(
    run: chiplog.Run, tmp_path: Path
) -> None:
    database = empty_database(tmp_path / "index.duckdb")
    columns = [row[0] for view in ("runs", "labels") for row in database.sql(f"DESCRIBE {view}").fetchall()]
    expected = {*OF_OTHER_RUNS.split(), *OF_VARIABLES.split(), *columns, *inspect.signature(chiplog.init).parameters}
    disabled = chiplog.init(mode="disabled", reinit="create_new")
    for found in (run, disabled, DisabledRun()):
        assert {name for name in expected if not hasattr(found, name)} == set()
    assert run.run_id == run.id == run.info.run_id == "r"
    assert (run.primary, run.run_group, run.world_size, run.resumed) == (True, None, None, False)
    assert (run.project_name, run.project_name(), run.pid, run.node) == ("p", "p", os.getpid(), node_name())
    assert abs(run.start_time - time.time()) < 600 and run.started_at.timestamp() == run.start_time
    assert run.exit_code is None and run.state is None


@pytest.mark.parametrize(
    "use",
    [
        lambda: time.time() - chiplog.run.start_time,
        lambda: chiplog.run.starting_step > 0 or range(chiplog.run.starting_step),
        lambda: Path(chiplog.run.sync_dir) / os.path.join(chiplog.run.sync_dir, "x"),
        lambda: json.dumps({"u": chiplog.run.project_url}),
        lambda: chiplog.get_tracking_uri() + "/x",
        lambda: f"{chiplog.evaluate(1).metrics['a']:.3f}",
        lambda: sorted([chiplog.Molecule, chiplog.Molecule]),
        lambda: next(iter(chiplog.Api().runs("x")), None),
        lambda: [chiplog.Api().run("x").summary["acc"] > 0.5, 1 / chiplog.Graph().width, -chiplog.Graph().width],
        lambda: os.path.join(chiplog.Api().artifact("x").download(), "model.pt"),
        lambda: float(chiplog.Api().run("x").summary["acc"]) + int(chiplog.Api().run("x").steps),
        lambda: list(chiplog.integration) + list(chiplog.sdk["x"]),
        lambda: chiplog.config.as_dict() | {"a": 1},
        lambda: chiplog.config.setdefaults(None) or chiplog.config.setdefaults(5),
        lambda: chiplog.config.setdefaults(argparse.Namespace(depth=3)),
    ],
)
def test_no_use_of_a_foreign_name_raises(run: chiplog.Run, use) -> None:
    use()


@proves("stand-in-is-no-value", "a value of another logger's name is not stored as a number", condition=False)
def test_a_value_of_a_foreign_name_is_refused_and_not_stored(run: chiplog.Run, caplog, offline) -> None:
    best = chiplog.Api().run("x").summary["accuracy"]

    class Mine(chiplog.Settings):
        pass

    for _ in range(2):
        run.log({"best": best, "nested": {"class": chiplog.Settings}, "mine": Mine(), "loss": 1.0}, step=best)
    run.log({"weights": chiplog.Histogram(best)})
    run.config["best"] = best
    run.finish()
    metrics = [(e.fields["step"], unpack(e.fields["keys"])) for e in offline(EventKind.METRICS)]
    assert metrics == [(0, ["loss"]), (1, ["loss"])]
    assert not offline(EventKind.HISTOGRAM)
    lines = [r.getMessage() for r in caplog.records if "is of a name that chiplog does not have" in r.getMessage()]
    assert [line.split()[1] for line in lines] == ["'best'", "'nested/class'", "'mine'", "config"]
    assert "became nan" not in caplog.text
    counts = [e.fields["body"] for e in offline(EventKind.NOTICE) if e.fields["notice"] == "bad_values"]
    assert counts[-1]["stand_in"] == 6


def test_an_argument_of_a_foreign_name_is_left_out(chiplog_dir: Path, caplog) -> None:
    word = chiplog.util.generate_id()
    run = chiplog.init(id=word, name=word, label=word, group=word, config=word, mode="offline", capture_console=False)
    assert (run.name, run.group, run.config.as_dict()) == (None, None, {})
    assert "not available" not in f"{run.id} {run.label}"
    run.finish()
    lines = [r.getMessage().split()[1] for r in caplog.records if "is left out" in r.getMessage()]
    assert lines == ["id=", "name=", "group=", "config=", "label="]


def test_a_description_of_a_foreign_name_is_left_out(run: chiplog.Run, caplog) -> None:
    run.name, run.tags = "baseline", ["a", chiplog.Graph()]
    run.name = run.notes = chiplog.util.generate_id()
    assert (run.name, run.notes, run.tags) == ("baseline", None, ("a",))
    lines = [r.getMessage().split()[1] for r in caplog.records if "is left out" in r.getMessage()]
    assert lines == ["run.name=", "run.notes="]


@proves(
    "each-lost-name-reported",
    "each foreign name whose data is lost is reported",
    part="_WARNINGS_MAX.get(kind, _WARNINGS_PER_KIND)",
    new="_WARNINGS_PER_KIND",
)
def test_each_foreign_name_whose_data_is_lost_is_reported_however_many_there_were(
    run: chiplog.Run, caplog, offline
) -> None:
    others = ["agent", "apis", "attach", "controller", "env", "join", "jupyter", "login", "require", "sdk", "sweep"]
    recording = ["log_param", "log_params", "log_metric", "set_tag", "log_text", "log_dict", "log_figure", "set_tags"]
    recording += ["log_input", "log_inputs", "log_outputs", "autolog"]
    for name in others + recording * 2:
        getattr(chiplog, name)("x")
    run.link_artifact("x")
    run.finish()
    expected = [f"chiplog.{name}" for name in others[:10] + recording] + ["run.link_artifact"]
    assert [r.getMessage().split()[1] for r in caplog.records if "is not available" in r.getMessage()] == expected
    rows = [e.fields["body"]["key"] for e in offline(EventKind.NOTICE) if e.fields["notice"] == "bad_value"]
    assert rows == expected


@pytest.mark.parametrize("clause", ["Error", "MlflowException"])
def test_an_except_clause_with_a_foreign_exception_lets_others_pass(clause: str) -> None:
    with pytest.raises(ValueError, match="the user's"):
        try:
            raise ValueError("the user's")
        except getattr(chiplog, clause):
            pass
    with pytest.raises(ValueError, match="the user's"):
        try:
            raise ValueError("the user's")
        except chiplog.errors.CommError:
            pass


@pytest.mark.parametrize("name", ["__wrapped__", "__dataclass_fields__", "nonsense", "utils"])
def test_any_other_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError):
        getattr(chiplog, name)
    run = chiplog.init(mode="disabled")
    with pytest.raises(AttributeError):
        getattr(run, name)
    with pytest.raises(AttributeError):
        getattr(chiplog.Molecule(), "__array__")  # noqa: B009


def test_calls_without_a_run_are_one_warning_each_and_do_nothing(caplog, chiplog_dir: Path) -> None:
    for _ in range(2):
        chiplog.alert("x")
        chiplog.config.lr = 1
        with chiplog.phase("forward"), chiplog.step():
            assert list(chiplog.data([1, 2])) == [1, 2]
        assert chiplog.save("x") == []
        chiplog.watch(None)
        chiplog.define_metric("x")
    assert sorted(r.getMessage().split()[1] for r in caplog.records) == sorted(
        ["alert()", "config", "phase()", "step()", "data()", "save()", "watch()", "define_metric()"]
    )


def test_nan_is_counted_apart_from_values_that_could_not_be_logged(run: chiplog.Run, offline) -> None:
    run.log({"loss": float("nan"), "list": [1]})
    run.finish()
    counts = {e.fields["notice"]: e.fields["body"] for e in offline(EventKind.NOTICE)}
    assert (counts["bad_values"], counts["nonfinite_values"]) == ({"not_a_number": 1}, {"not_finite": 1})


def test_dir_shows_the_public_names_and_no_others() -> None:
    assert dir(chiplog) == sorted(chiplog.__all__)


def test_the_package_imports_without_argv(tmp_path: Path) -> None:
    code = "import sys; del sys.argv; import chiplog; chiplog.init(mode='offline', capture_console=False).finish()"
    environ = os.environ | {"CHIPLOG_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, env=environ)
    assert (done.returncode, done.stderr) == (0, "")


def test_classes_of_queries_are_names_of_the_package() -> None:
    from chiplog_client.client import Client, NoDataError, QueryError
    from chiplog_client.results.result import Result

    found = (chiplog.Client, chiplog.NoDataError, chiplog.QueryError, chiplog.Result)
    assert found == (Client, NoDataError, QueryError, Result)


@proves("import-without-fcntl", "the package imports without fcntl", condition=True)
def test_without_fcntl_the_package_imports_and_records_nothing(tmp_path: Path) -> None:
    code = """
import json, sys
for name in ("fcntl", "resource", "termios", "pty", "pwd", "grp"):
    sys.modules[name] = None
import chiplog
run = chiplog.init(project="p", config={"lr": 1})
chiplog.log({"loss": 1.0}, step=3)
with chiplog.phase("forward"), run:
    chiplog.config.lr = 2
chiplog.setup()
chiplog.finish()
print(json.dumps([run.mode, run.config.lr, chiplog.run is run]))
"""
    environ = os.environ | {"CHIPLOG_DIR": str(tmp_path / "data")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True, env=environ
    )
    assert json.loads(done.stdout) == ["disabled", 2, True]
    assert done.stderr.count("\n") == 1
    assert "has no module fcntl; nothing is recorded" in done.stderr
    assert not (tmp_path / "data").exists()


def test_the_package_can_still_be_pickled_by_reference() -> None:
    assert pickle.loads(pickle.dumps(chiplog.Run)) is chiplog.Run
