"""deploy/monitoring: the alert rules by their examples, and each query of the dashboard by a real Prometheus.

Prometheus scrapes a real agent and collector, with stand-in GPUs. The dashboard was never rendered by Grafana.
"""

import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chiplog_schemas.model.system_metrics import SYSTEM_METRICS
from tests.support.gpu_sampler import compile_library
from tests.support.node import Node
from tests.support.ports import free_ports
from tests.support.tools import require
from tests.support.waiting import WAIT_S, wait_until

FOLDER = Path(__file__).parents[2] / "deploy/monitoring"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ALERTS = """GpuLost GpuStale GpusReleased XidFatal ThermalThrottling RowRemapPending GpuNeedsRecovery
TargetDown SpoolFilling DataRefused NodeSilent ApplyLag DiskFullIn24h IndexRestarting"""
EXPOSED = {f"{metric.exposed[0]}{'_total' if metric.is_counter else ''}" for metric in SYSTEM_METRICS.values()}
RANK = (
    "import time, chiplog; run = chiplog.init(run_id='r', label='rank0', capture_console=False)\n"
    "while True: run.log({'x': 1.0}); time.sleep(0.1)"
)


def metrics_in(query: str) -> set[str]:
    return set(re.findall(r"\b(?:hw|system|process|cgroup|chiplog)_\w+", query))


def test_each_alert_has_an_example_that_promtool_confirms() -> None:
    require("promtool")
    done = subprocess.run(["promtool", "test", "rules", "alerts_test.yml"], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    checked = subprocess.run(
        ["promtool", "check", "config", "prometheus.yml"], cwd=FOLDER, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    rules = (FOLDER / "alerts.yml").read_text(encoding="utf-8")
    assert re.findall(r"- alert: (\w+)", rules) == ALERTS.split()
    tested = (FOLDER / "alerts_test.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n", tested)) == set(ALERTS.split())


def test_no_rule_and_no_panel_names_a_metric_that_is_not_exposed() -> None:
    rules = (FOLDER / "alerts.yml").read_text(encoding="utf-8")
    expressions = re.findall(r"expr: (?:>\n)?((?:.|\n)+?)(?=\n        (?:for|labels):)", rules)
    queries = [*expressions, *(target["expr"] for panel in PANELS for target in panel["targets"])]
    assert {name for query in queries for name in metrics_in(query)} - EXPOSED == set()
    assert all(metrics_in(query) or query.startswith("up{") for query in queries)


def test_each_panel_has_a_title_a_unit_and_a_place_of_its_own() -> None:
    assert len({panel["title"] for panel in PANELS}) == len(PANELS) > 20
    assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in PANELS)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places) and len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in PANELS)


class Prometheus:
    """A server that scrapes each second."""

    def __init__(self, folder: Path, targets: dict[str, str]) -> None:
        jobs = [{"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(FOLDER / "alerts.yml")],
            "scrape_configs": jobs,
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self.url = f"http://127.0.0.1:{free_ports(1)}"
        command = ["prometheus", "--config.file=prometheus.yml", f"--storage.tsdb.path={folder / 'data'}"]
        command += [f"--web.listen-address={self.url.removeprefix('http://')}", "--log.level=warn"]
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def query(self, query: str) -> list[dict[str, Any]]:
        parameters = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{parameters}", timeout=WAIT_S) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        assert found["status"] == "success", query
        result: list[dict[str, Any]] = found["data"]["result"]
        return result

    def is_up(self, count: int) -> bool:
        try:
            return [found["value"][1] for found in self.query("up")] == ["1"] * count
        except OSError:
            return False


@pytest.fixture
def prometheus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Prometheus]:
    for tool in ("promtool", "gcc"):
        require(tool)
    compile_library(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("CHIPLOG_DIR", str(tmp_path / "d"))
    first = free_ports(2)
    targets = {"chiplog-agent": f"127.0.0.1:{first}", "chiplog-collector": f"127.0.0.1:{first + 1}"}
    with Node(tmp_path / "d") as node:
        node.collector = node._start("chiplog_collector", "--metrics-bind", targets["chiplog-collector"])
        node.agent = node._start("chiplog_agent", "--metrics-bind", targets["chiplog-agent"])
        rank = subprocess.Popen([sys.executable, "-c", RANK])
        server = Prometheus(tmp_path, targets)
        try:
            wait_until(lambda: server.is_up(2), "two targets")
            yield server
        finally:
            for process in (rank, server.process):
                process.kill()
                process.wait(WAIT_S)


def test_each_query_of_the_dashboard_is_answered_by_a_real_prometheus(prometheus: Prometheus) -> None:
    """Where this machine or the stand-in lacks a source, the answer is empty; of all others it has values."""
    wait_until(lambda: prometheus.query('rate(chiplog_events_total{result="received"}[20s]) > 0'), "rates of events")
    wait_until(lambda: prometheus.query("chiplog_apply_lag_seconds"), "the collector's values")
    wait_until(lambda: prometheus.query("rate(chiplog_sdk_events_total[20s]) > 0"), "what ranks report")
    empty = set()
    for panel in PANELS:
        for target in panel["targets"]:
            query = target["expr"]
            for variable, value in {"$__rate_interval": "20s", "$node": ".+", "$run_id": ".*"}.items():
                query = query.replace(variable, value)
            found = prometheus.query(query)
            if not found:
                empty.add(query)
            first = f"{len(found)} series, the first {float(found[0]['value'][1]):.4g}" if found else "none"
            print(f"| {panel['title']} | `{target['expr']}` | {first} |")  # for deploy/monitoring/README.md
    assert all(re.search("nvlink|disk_io|pressure", query) for query in empty), empty
    assert prometheus.query('process_memory_usage_bytes{run_id="r",label="rank0"}')
    for state in ("chiplog_gpus_lost", "chiplog_gpus_stale", "chiplog_fatal_xids_total"):
        assert len({found["metric"]["uuid"] for found in prometheus.query(f'{state}{{uuid!="",pci!=""}}')}) == 2, state
    # The stand-in's GPUs wait for a reset, to remap rows; nothing else is wrong here.
    wait_until(lambda: prometheus.query('ALERTS{alertname="GpuNeedsRecovery"}'), "an alert")
    wait_until(lambda: prometheus.query('ALERTS{alertname="RowRemapPending"}'), "another alert")
    firing = prometheus.query('ALERTS{alertstate="firing"}')
    assert {alert["metric"]["alertname"] for alert in firing} == {"RowRemapPending", "GpuNeedsRecovery"}
