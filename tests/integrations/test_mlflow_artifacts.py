"""Artifacts, models, datasets and the registry of MLflow on `chiplog://`, and the page of MLflow's server on them."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Page, expect

from chiplog_schemas.paths import paths_for_root
from tests.integrations.environment import oldest_mlflow_directory
from tests.integrations.matrix import PYTHON, ROW
from tests.integrations.training import END_S
from tests.support.failed_output import ended_with
from tests.support.node import Node, end_daemons
from tests.support.page_site import running_browser
from tests.support.ports import free_ports
from tests.support.waiting import WAIT_MS, WAIT_S, wait_until

_SCRIPTS = Path(__file__).with_name("trainings")
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false", "OMP_NUM_THREADS": "1"}
_READ = """
import json, sys, mlflow
from pathlib import Path
run_id, *paths = sys.argv[1:]
client = mlflow.MlflowClient()
listed = [[entry.path, entry.file_size] for entry in client.list_artifacts(run_id, "ranks")]
found = {path: mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path=path) for path in paths}
sizes = {path: Path(place).stat().st_size for path, place in found.items()}
print("FOUND", json.dumps([mlflow.__version__, sorted(listed), sizes]))
"""

_ALONE = """
import mlflow, os
mlflow.set_experiment("alone")
with mlflow.start_run() as run:
    for number in range(2):
        mlflow.log_table({"x": [number]}, "tables/all.json")
    mlflow.log_text("mine", "notes.txt")
    model = mlflow.create_external_model(name="ext", source_run_id=run.info.run_id)
    mlflow.log_metric("loss", 0.5, model_id=model.model_id)
client = mlflow.MlflowClient()
assert [entry.path for entry in client.list_artifacts(run.info.run_id)] == ["notes.txt", "tables"]
assert mlflow.artifacts.load_text(f"runs:/{run.info.run_id}/notes.txt") == "mine"
assert mlflow.artifacts.load_dict(f"runs:/{run.info.run_id}/tables/all.json")["data"] == [[0], [1]]
assert [metric.value for metric in mlflow.get_logged_model(model.model_id).metrics] == [0.5]
try:
    mlflow.search_logged_models(output_format="list")
except mlflow.exceptions.MlflowException as error:
    print("SEARCH", error.message)
"""


def _python(directory: Path, root: Path, *command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run the Python of the libraries to its end."""
    return subprocess.run(
        [os.environ[PYTHON], *command],
        env={**os.environ, **_QUIET, "CHIPLOG_DIR": str(root), "MLFLOW_TRACKING_URI": "chiplog://", **variables},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=END_S,
    )


def _account(directory: Path, root: Path, uri: str, **variables: str) -> dict[str, Any]:
    """Run the script that writes and reads all of it; return what it has read."""
    directory.mkdir()
    script, target = str(_SCRIPTS / "mlflow_models.py"), directory / "found.json"
    ended = _python(directory, root, script, uri, str(target), MLFLOW_TRACKING_URI=uri, **variables)
    assert ended.returncode == 0, ended_with(ended.returncode, ended.stderr)
    said = [line for line in ended.stderr.splitlines() if line.startswith("chiplog: ")]
    assert said == []
    account: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return account


@pytest.fixture(scope="module")
def logged(shared_node: Node, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script has read of chiplog, with the IDs of a run, of its model, and of a model without a run."""
    return _account(tmp_path_factory.mktemp("mlflow") / "chiplog", shared_node.root, "chiplog://")


def test_artifacts_models_and_the_registry_are_those_of_mlflows_own_store(
    logged: dict[str, Any], shared_node: Node, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    theirs = _account(tmp_path / "mlflow", tmp_path / "unused", f"sqlite:///{tmp_path}/mlflow.db")
    n_files = len(theirs["found"]["files"]) + len(theirs["found"]["MLmodel"])
    row = {"library": "MLflow, artifacts and models", "version": theirs["version"], "ranks": 1, "rows": n_files}
    request.node.user_properties.append((ROW, row))
    assert logged["found"] == theirs["found"]
    assert len(logged["found"]["registry"]["versions"]) == 2
    media = f"SELECT key, step, kind, is_stored FROM media WHERE run_id = '{logged['ids'][0]}' ORDER BY step"
    assert [tuple(found.values()) for found in shared_node.sql(media)] == [
        ("val/sample", step, "image", True) for step in range(2)
    ]


def test_the_oldest_mlflow_has_the_same_artifacts_and_models(
    logged: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    oldest = oldest_mlflow_directory(os.environ[PYTHON])
    path = os.pathsep.join(filter(None, (str(oldest), os.environ.get("PYTHONPATH", ""))))
    root = tmp_path / "chiplog"
    node = Node(root).start()
    try:
        found = _account(tmp_path / "oldest", root, "chiplog://", PYTHONPATH=path)
    finally:
        node.stop()
    differing = {"files", "model files", "MLmodel", "registry"}  # names of pictures, and the version in files
    later = ["test_loss", "0.25", 0, None, None]  # newer ones send the model's ID with what is logged after it, too
    found["found"]["model"]["metrics"].append(later)
    ours, theirs = (
        {name: value for name, value in account["found"].items() if name not in differing}
        for account in (found, logged)
    )
    assert ours == theirs
    assert "SQLAlchemy" in found["found"]["registry"] or found["found"]["registry"] == logged["found"]["registry"]
    row = {"library": "MLflow, the oldest, artifacts", "version": found["version"], "ranks": 1, "rows": len(ours)}
    request.node.user_properties.append((ROW, row))


def test_every_rank_logs_artifacts_and_a_kill_after_the_call_loses_none(
    shared_node: Node, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(_SCRIPTS / "mlflow_ranks.py"))
    ended = _python(tmp_path, shared_node.root, *command, PROJECT=tmp_path.name)
    assert ended.returncode, "both ranks were killed"
    refused = [line for line in ended.stderr.splitlines() if "chiplog: " in line and "is refused" in line]
    assert len(refused) == 2 and all("must be relative, without '..'" in line for line in refused), ended.stderr[-4000:]
    files = f"SELECT f.path FROM files f JOIN runs r ON r.run_id = f.run_id WHERE r.project = '{tmp_path.name}'"
    stored = shared_node.until(f"{files} ORDER BY path", lambda rows: len(rows) == 8)
    assert not any("outside" in found["path"] for found in stored)
    run_id = shared_node.sql(f"SELECT run_id FROM runs WHERE project = '{tmp_path.name}'")[0]["run_id"]
    paths = ["ranks/0.txt", "ranks/1.txt", "ranks/0/large.bin", "ranks/1/large.bin"]
    read = _python(tmp_path, shared_node.root, "-c", _READ, run_id, *paths)
    [found] = [line for line in read.stdout.splitlines() if line.startswith("FOUND ")] or [read.stderr[-4000:]]
    listed = [["ranks/0", None], ["ranks/0.txt", 9], ["ranks/1", None], ["ranks/1.txt", 9]]
    sizes = {path: 3_000_000 if path.endswith(".bin") else 9 for path in paths}
    version, *answer = json.loads(found.removeprefix("FOUND "))
    assert answer == [listed, sizes]
    row = {"library": "MLflow, artifacts of killed ranks", "version": version, "ranks": 2, "rows": len(stored)}
    request.node.user_properties.append((ROW, row))


def test_without_a_collector_a_process_reads_its_own_artifacts_and_logging_raises_nothing(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    gone = f"tcp://127.0.0.1:{free_ports(2)}"
    script = tmp_path / "alone.py"  # with -c, pyspark ends a process that lacks a part of it
    script.write_text(_ALONE)
    ended = _python(tmp_path, tmp_path / "chiplog", str(script), CHIPLOG_COLLECTOR=gone)
    end_daemons(paths_for_root(tmp_path / "chiplog"))
    assert ended.returncode == 0, ended_with(ended.returncode, ended.stderr)
    assert "SEARCH chiplog's collector did not answer" in ended.stdout
    request.node.user_properties.append((ROW, {"library": "MLflow, artifacts alone", "ranks": 1}))


class _Server:
    """MLflow's server on a node's data."""

    def __init__(self, node: Node, directory: Path) -> None:
        self.base = f"http://127.0.0.1:{free_ports(1)}"
        self._log = directory / "server.log"
        command = ["-m", "mlflow", "server", "--backend-store-uri", "chiplog://", "--workers", "1"]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [os.environ[PYTHON], *command, "--host", "127.0.0.1", "--port", self.base.rpartition(":")[2]],
                env={**os.environ, **_QUIET, "CHIPLOG_DIR": str(node.root)},
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait(self) -> None:
        """Wait until it answers."""

        def answers() -> bool:
            assert self._process.poll() is None, self._log.read_text()[-4000:]
            with suppress(URLError, ConnectionError):
                return bool(self.ask("GET", "/health")[0] == 200)
            return False

        wait_until(answers, "MLflow's server")

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Return status and content of an answer."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=END_S) as answer:
                return answer.status, answer.read()
        except HTTPError as error:
            return error.code, error.read()

    def stop(self) -> None:
        """End it; its workers end with it."""
        self._process.terminate()
        self._process.wait(WAIT_S)


@pytest.fixture(scope="module")
def server(shared_node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Server]:
    """MLflow's server, which answers."""
    server = _Server(shared_node, tmp_path_factory.mktemp("server"))
    try:
        server.wait()
        yield server
    finally:
        server.stop()


def _calls(run: str, experiment: str, model: str) -> list[tuple[str, str, Any]]:
    """Return what MLflow's page asks for, as Chromium showed it: method, path, body."""
    api, text = "/ajax-api/2.0/mlflow", quote("notes/text.txt", safe="")
    latest = {"experiment_ids": [experiment], "order_by": ["attributes.start_time DESC"], "max_results": 100}
    newest = [{"field_name": "creation_time", "ascending": False}]
    traces = {"locations": [{"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}}]}
    metric = {"experiment_ids": [experiment], "view_type": "TRACES", "metric_name": "trace_count"}
    prompt = quote("tags.`mlflow.prompt.is_prompt` = 'true'")
    graphql = {
        "operationName": "GetRun",
        "variables": {"data": {"runId": run}},
        "query": "query GetRun($data: MlflowGetRunInput!) { mlflowGetRun(input: $data) { run { info { runName } } } }",
    }
    return [
        ("GET", f"{api}/experiments/search?max_results=25&order_by=last_update_time+DESC", None),
        ("GET", f"{api}/experiments/get?experiment_id={experiment}", None),
        ("GET", f"{api}/experiments/get-by-name?experiment_name=artifacts", None),
        ("POST", f"{api}/experiments/search-datasets", {"experiment_ids": [experiment]}),
        ("POST", f"{api}/runs/search", latest),
        ("GET", f"{api}/runs/get?run_id={run}", None),
        ("GET", f"{api}/metrics/get-history?run_uuid={run}&metric_key=loss", None),
        ("GET", f"{api}/metrics/get-history-bulk?run_id={run}&metric_key=loss", None),
        ("GET", f"{api}/metrics/get-history-bulk-interval?run_ids={run}&metric_key=loss&max_results=320", None),
        ("GET", f"{api}/artifacts/list?run_uuid={run}", None),
        ("GET", f"{api}/artifacts/list?run_uuid={run}&path=notes", None),
        ("GET", f"{api}/artifacts/list?run_uuid={run}&path={text}", None),
        ("GET", f"/get-artifact?path={text}&run_uuid={run}", None),
        ("POST", f"{api}/logged-models/search", {"experiment_ids": [experiment], "order_by": newest}),
        ("GET", f"{api}/logged-models/{model}", None),
        ("GET", f"{api}/logged-models/{model}/artifacts/directories", None),
        ("GET", f"{api}/logged-models/{model}/artifacts/files?artifact_file_path=MLmodel", None),
        ("GET", f"{api}/registered-models/search?filter=&max_results=25&order_by=name+ASC", None),
        ("GET", f"{api}/registered-models/search?filter={prompt}", None),
        ("GET", f"{api}/registered-models/get?name=shop", None),
        ("GET", f"{api}/model-versions/search?filter={quote(f'run_id={run!r}')}", None),
        ("GET", f"{api}/model-versions/get?name=shop&version=1", None),
        ("GET", "/model-versions/get-artifact?path=MLmodel&name=shop&version=1", None),
        ("POST", "/ajax-api/3.0/mlflow/traces/search", traces),
        ("POST", "/ajax-api/3.0/mlflow/traces/metrics", {**metric, "aggregations": [{"aggregation_type": "COUNT"}]}),
        ("GET", f"{api}/traces?experiment_ids={experiment}", None),
        ("POST", "/ajax-api/3.0/mlflow/datasets/search", {"experiment_ids": [experiment]}),
        ("GET", f"/ajax-api/3.0/mlflow/scorers/list?experiment_id={experiment}", None),
        ("POST", "/ajax-api/3.0/mlflow/issues/search", {"experiment_id": experiment}),
        ("GET", f"/ajax-api/3.0/mlflow/label-schemas/list?experiment_id={experiment}", None),
        ("GET", f"/ajax-api/3.0/mlflow/review-queues/list?experiment_id={experiment}", None),
        ("GET", "/ajax-api/3.0/mlflow/gateway/endpoints/list", None),
        ("GET", "/ajax-api/3.0/mlflow/server-info", None),
        ("POST", "/graphql", graphql),
    ]


def test_mlflows_server_answers_every_call_of_its_page(
    logged: dict[str, Any], server: _Server, shared_node: Node, request: pytest.FixtureRequest
) -> None:
    run_id, model_id, _ = logged["ids"]
    found = json.loads(server.ask("GET", f"/ajax-api/2.0/mlflow/runs/get?run_id={run_id}")[1])
    experiment_id = found["run"]["info"]["experiment_id"]
    calls = _calls(run_id, experiment_id, model_id)
    answers = {(method, path): server.ask(method, path, body) for method, path, body in calls}
    bad = {call: (status, text[:300]) for call, (status, text) in answers.items() if status != 200}
    assert bad == {}
    by_path = {path.partition("?")[0]: text for (_, path), (_, text) in answers.items()}
    assert by_path["/get-artifact"] == b"two"
    assert json.loads(by_path["/ajax-api/3.0/mlflow/traces/search"]) == {}
    assert json.loads(by_path["/graphql"])["data"]["mlflowGetRun"]["run"]["info"]["runName"] == "all"
    row = {"library": "MLflow, its server's REST calls", "version": logged["version"], "rows": len(calls)}
    request.node.user_properties.append((ROW, row))


def test_mlflows_page_shows_experiments_a_run_a_chart_an_artifact_and_a_model(
    logged: dict[str, Any], server: _Server, request: pytest.FixtureRequest
) -> None:
    run_id, model_id, _ = logged["ids"]
    failed: list[str] = []
    with running_browser() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(WAIT_MS)
        expect.set_options(timeout=WAIT_MS)
        page.on("response", lambda answer: failed.append(answer.url) if answer.status >= 500 else None)
        page.goto(f"{server.base}/#/experiments")
        page.get_by_role("link", name="artifacts", exact=True).first.click()
        page.wait_for_url(re.compile(r"/experiments/\d{18}"))
        experiment = re.findall(r"/experiments/(\d{18})", page.url)[0]
        _open(page, f"{server.base}/#/experiments/{experiment}/runs")
        expect(page.get_by_role("link", name="all", exact=True).first).to_be_visible()
        _open(page, f"{server.base}/#/experiments/{experiment}/runs/{run_id}/model-metrics")
        expect(page.locator(".scatterlayer .trace").first).to_be_attached()  # the curve of the loss
        _open(page, f"{server.base}/#/experiments/{experiment}/runs/{run_id}/artifacts/notes/text.txt")
        expect(page.get_by_text("two", exact=True)).to_be_visible()
        _open(page, f"{server.base}/#/experiments/{experiment}/models/{model_id}")
        expect(page.get_by_role("heading", name="cnn")).to_be_visible()
        expect(page.get_by_text("test_loss", exact=True).first).to_be_attached()
    assert failed == []
    row = {"library": "MLflow, its page in Chromium", "version": logged["version"], "rows": 5}
    request.node.user_properties.append((ROW, row))


def _open(page: Page, address: str) -> None:
    page.goto("about:blank")
    page.goto(address)
