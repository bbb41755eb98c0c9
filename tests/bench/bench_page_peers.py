"""The page beside those of TensorBoard, MLflow and Trackio on the same data: first curve, bytes on the wire, heap.

4 runs of 8 ranks, 10 metrics and 2,000 steps; the peers have 32 runs for it. `CHIPLOG_BENCH_PEERS` is the Python of an
environment with tensorboard, tensorboardX, mlflow and trackio; without it nothing is measured. A curve is there once a
part of the screen has colour, in the same way for all.
"""

import io
import os
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from PIL import Image
from playwright.sync_api import Browser, Error, sync_playwright

from tests.bench.bench_page import CHROMIUM, RUNS, SIZE, page_of, write_small_store
from tests.bench.figure import Figure

PEERS_PYTHON = os.environ.get("CHIPLOG_BENCH_PEERS", "")
REPEATS = 5
LIMIT_S = 60.0
SETTLED_S = 3.0
COLOUR_MIN = 60  # of 255, between the channels of a pixel
SHARE_MIN = 0.03  # of the pixels

WRITE = {
    "TensorBoard": """
from tensorboardX import SummaryWriter
for name in names:
    writer = SummaryWriter(f"{root}/{name}")
    for step in range(2000):
        for key in range(10): writer.add_scalar(f"train/metric_{key}", random.random(), step)
    writer.close()
""",
    "MLflow": """
import mlflow
from mlflow.entities import Metric
mlflow.set_tracking_uri(f"sqlite:///{root}/mlflow.db")
experiment, client = mlflow.create_experiment("bench", f"{root}/artifacts"), mlflow.MlflowClient()
for name in names:
    run = client.create_run(experiment, run_name=name).info.run_id
    for first in range(0, 2000, 100):
        client.log_batch(run, metrics=[Metric(f"train/metric_{key}", random.random(), 1_700_000_000_000 + step, step)
                                       for step in range(first, first + 100) for key in range(10)])
    client.set_terminated(run)
""",
    "Trackio": """
import trackio
for name in names:
    trackio.init(project="bench", name=name)
    for step in range(2000): trackio.log({f"train/metric_{key}": random.random() for key in range(10)}, step=step)
    trackio.finish()
""",
}
NAMES = """
import random, sys
root = sys.argv[1]
names = [f"run-{run}-rank{rank}" for run in range(4) for rank in range(8)]
"""


@dataclass(frozen=True)
class Peer:
    """How a server is started, what is opened, and where on the screen its first curve is."""

    name: str
    command: tuple[str, ...]
    fragment: str
    clip: tuple[int, int, int, int]  # left, top, width, height


PEERS = (
    Peer("TensorBoard", ("-m", "tensorboard.main", "--logdir", "{root}", "--port", "{port}", "--host", "127.0.0.1"),
         "/", (400, 320, 280, 200)),
    Peer("MLflow", ("-m", "mlflow", "ui", "--backend-store-uri", "sqlite:///{root}/mlflow.db", "--port", "{port}"),
         "/#/experiments/1/runs?compareRunsMode=CHART&workflowType=machine_learning", (596, 345, 80, 180)),
    Peer("Trackio", ("-m", "trackio.cli", "show", "--project", "bench"), "/", (390, 145, 260, 200)),
)  # fmt: skip
OURS = (70, 350, 380, 150)


@contextmanager
def served(peer: Peer, root: Path) -> Iterator[str]:
    """Write the data of a peer, serve it, and yield the address."""
    environ = os.environ | {
        "TRACKIO_DIR": str(root),
        "GRADIO_ANALYTICS_ENABLED": "False",
        "MLFLOW_DISABLE_TELEMETRY": "1",
    }
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    subprocess.run([PEERS_PYTHON, "-c", NAMES + WRITE[peer.name], str(root)], env=environ, check=True)
    command = [part.format(root=root, port=port) for part in peer.command]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen([PEERS_PYTHON, *command], env=environ | {"GRADIO_SERVER_PORT": str(port)}, **quiet)
    try:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
                break
            except OSError:
                time.sleep(0.5)
        time.sleep(10.0)  # TensorBoard loads its files
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def has_curve(screen: bytes) -> bool:
    pixels = numpy.asarray(Image.open(io.BytesIO(screen)).convert("RGB")).astype(int)
    return float((numpy.ptp(pixels, axis=2) > COLOUR_MIN).mean()) > SHARE_MIN


def look(
    browser: Browser, address: str, clip: tuple[int, int, int, int], signed_in: str = ""
) -> tuple[float, int, float]:
    """Open a page with an empty cache; return the seconds to the first curve, and all bytes and the heap after it."""
    context = browser.new_context(viewport=SIZE)
    page = context.new_page()
    if signed_in:
        page.goto(signed_in)
        page.goto("about:blank")
    wire = context.new_cdp_session(page)
    n_bytes = 0

    def count(event: dict[str, Any]) -> None:
        nonlocal n_bytes
        n_bytes += event["encodedDataLength"]

    wire.send("Network.enable")
    wire.send("Network.setCacheDisabled", {"cacheDisabled": True})
    wire.on("Network.dataReceived", count)
    left, top, width, height = clip
    area: Any = {"x": left, "y": top, "width": width, "height": height}
    begun = time.perf_counter()
    page.goto(address, wait_until="commit")
    took = LIMIT_S
    while time.perf_counter() - begun < LIMIT_S:
        try:
            screen = page.screenshot(clip=area, animations="allow", caret="initial")
        except Error:  # the browser is too busy with the page
            continue
        if has_curve(screen):
            took = time.perf_counter() - begun
            break
    page.wait_for_timeout(1000 * SETTLED_S)
    wire.send("HeapProfiler.collectGarbage")
    heap = float(wire.send("Runtime.getHeapUsage")["usedSize"])
    context.close()
    return took, n_bytes, heap


def figures_of(name: str, looks: list[tuple[float, int, float]]) -> list[Figure]:
    times = [took for took, _, _ in looks]
    spread = f"{min(times):.1f} to {max(times):.1f} s of {len(times)}"
    _, n_bytes, heap = looks[-1]
    return [
        Figure(f"{name}: first curve", statistics.median(times), "s", yardstick=spread),
        Figure(f"{name}: bytes", n_bytes / 1e6, "MB"),
        Figure(f"{name}: heap", heap / 1e6, "MB"),
    ]


def measure() -> list[Figure]:
    if not PEERS_PYTHON:
        return []
    figures: list[Figure] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with tempfile.TemporaryDirectory() as directory:
            write_small_store(Path(directory), RUNS)
            with page_of(Path(directory)) as server:
                time.sleep(6.0)
                address = f"http://127.0.0.1:{server.port}/#/run/run-1/curves"
                looks = [look(browser, address, OURS, server.new_address()) for _ in range(REPEATS)]
        figures += figures_of("chiplog", looks)
        for peer in PEERS:
            with tempfile.TemporaryDirectory() as directory, served(peer, Path(directory)) as address:
                looks = [look(browser, address + peer.fragment, peer.clip) for _ in range(REPEATS)]
            figures += figures_of(peer.name, looks)
        browser.close()
    return figures
