"""Pictures of each view of the page: of the demo's run, and of a run of 64 ranks that this script plays after one of 8.

    python scripts/screenshots.py FOLDER [--demo demo-data] [--width 1440] [--theme light]

The 64 ranks are processes with the real SDK whose work is sleep: rank 11 reads its data four times as slowly for a
third of the steps, the others wait for it in backward, and rank 40 fails at the end. The run of 8 is healthy, with
another learning rate: *Compare* shows both.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

import chiplog

CHROMIUM = "/usr/bin/chromium"
LEARNING_RATES = {8: 6e-4, 64: 3e-4}  # by the number of ranks, in the order in which the runs are played
STEPS = 300
STEP_S = 0.2
START_S, RANK_START_S = 10.0, 1.0  # until the daemons run, and for each process
SLOW_RANK, SLOW_FIRST, SLOW_LAST = 11, 100, 200
BROKEN_RANK = 40
VIEWS = {
    "runs": "#/runs",
    "curves": "#/run/{run}/curves",
    "ranks": "#/run/{run}/ranks",
    "console": "#/run/{run}/console",
    "events": "#/run/{run}/events",
    "media": "#/run/{run}/media",
    "files": "#/run/{run}/files",
    "system": "#/run/{run}/system",
    "compare": "#/compare?run={run}&run={other}",  # where there are two runs
    "sql": "#/sql?q=FROM+stragglers",
}
SETTLED_MS = 4000


def train(rank: int, n_ranks: int, begin: float) -> None:
    """Be one rank: sleep in place of work, so that a rank that is slow makes the others wait."""
    draw, lr = random.Random(1000 * n_ranks + rank), LEARNING_RATES[n_ranks]
    config = {"lr": lr, "batch_size": 8 * n_ranks, "model": "gpt-small"}
    run = chiplog.init(project="gpt", run_id=f"gpt-{n_ranks}", name=f"gpt {n_ranks} ranks", label=f"rank{rank}",
                       primary=rank == 0, config=config)  # fmt: skip
    time.sleep(max(0.0, begin - time.monotonic()))
    begun = begin
    for step in range(STEPS):
        is_slow_step = SLOW_FIRST <= step < SLOW_LAST and n_ranks > SLOW_RANK
        data_s = 0.04 if is_slow_step and rank == SLOW_RANK else 0.01
        with run.step():
            with run.phase("data"):
                time.sleep(data_s * draw.uniform(0.9, 1.1))
            with run.phase("forward"):
                time.sleep(0.02 * draw.uniform(0.95, 1.05))
            with run.phase("backward"):  # ends for all together
                begun += STEP_S + (0.03 if is_slow_step else 0.0)
                time.sleep(max(0.0, begun - time.monotonic()))
            peak = 0.4 if rank == 11 and step % 90 > 80 else 0.0
            loss = 1.85 + 500 * lr + 9.0 / (step + 5) + 0.05 * draw.gauss(0, 1) + peak
            run.log({"train/loss": loss, "train/grad_norm": 1 + abs(draw.gauss(0, 0.3)), "optim/lr": lr}, step=step)
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: loss {loss:.3f}", flush=True)
            run.log({"eval/loss": loss + 0.1, "sample": f"To be, or not to be, at step {step}"}, step=step)
            run.log({"weights": chiplog.Histogram([draw.gauss(0, 1 + step / 100) for _ in range(500)])}, step=step)
    if rank == BROKEN_RANK:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    run.finish()


def play(root: Path, n_ranks: int) -> None:
    """Play a run."""
    environ = os.environ | {"CHIPLOG_DIR": str(root), "WORLD_SIZE": str(n_ranks)}
    begin = str(time.monotonic() + START_S + RANK_START_S * n_ranks)  # for all together
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", str(rank), str(n_ranks), begin],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(n_ranks)
    ]
    for rank in ranks:
        rank.wait()


def shoot(browser: Browser, root: Path, name: str, folder: Path, width: int, theme: str) -> None:
    """Save a picture of each view of the newest run of a directory."""
    command = [sys.executable, "-m", "chiplog_cli", "ui", "--port", "0", "--dir", str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found
            with chiplog.connect(dir=root) as client:
                rows = client.sql("SELECT run_id FROM runs ORDER BY created_at DESC LIMIT 2").rows()
            run, other = rows[0]["run_id"], rows[-1]["run_id"]
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)  # type: ignore[arg-type]
            page.goto(found[0])
            for view, fragment in VIEWS.items():
                if view == "compare" and run == other:
                    continue
                page.goto("about:blank")
                page.goto(found[0].partition("?")[0] + fragment.format(run=run, other=other))
                page.wait_for_timeout(SETTLED_MS)
                page.screenshot(path=folder / f"{name}-{view}.png")
            page.close()
        finally:
            server.terminate()


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="where the pictures are written")
    parser.add_argument("--demo", type=Path, default=Path("demo-data"), help="CHIPLOG_DIR of the demo (%(default)s)")
    parser.add_argument("--width", type=int, default=1440)
    parser.add_argument("--theme", choices=["light", "dark"], default="light")
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        train(int(args.rank[0]), int(args.rank[1]), float(args.rank[2]))
        return
    if args.folder is None:
        parser.error("no folder is given; name one for the pictures")
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        for n_ranks in LEARNING_RATES:
            play(Path(directory), n_ranks)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shoot(browser, Path(directory), "64-ranks", args.folder, args.width, args.theme)
        if args.demo.is_dir():
            shoot(browser, args.demo, "demo", args.folder, args.width, args.theme)
        browser.close()


if __name__ == "__main__":
    main()
