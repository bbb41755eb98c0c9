"""A run with media of every kind, as `log()` writes them, without a collector."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

import chiplog
from chiplog.values.media_value import Content, MediaValue
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.storage.content_files import content_path
from tests.support.run_builder import RunBuilder

STEPS = (0, 100, 200)
N_ROWS = 1_500
HTML = """<h1>Report</h1><p id=said style="color: red">no script</p><img src="https://example.invalid/a.png">
<script>document.getElementById("said").textContent = "a script"</script>"""
LOST = "lost"  # a key whose content has not arrived


def _pixels(step: int) -> Any:
    pixels = np.zeros((40, 60, 3), dtype=np.uint8)
    pixels[:, :, 0], pixels[10:30, 20:40, 1] = step, 200
    return pixels


def _image(step: int, rank: int) -> chiplog.Image:
    mask = np.zeros((40, 60), dtype=np.uint8)
    mask[10:30, 20:40] = 1
    box = {"position": {"minX": 20, "maxX": 40, "minY": 10, "maxY": 30}, "domain": "pixel", "class_id": 1,
           "scores": {"iou": 0.75}}  # fmt: skip
    middle = {"position": {"middle": [0.2, 0.3], "width": 0.2, "height": 0.4}, "class_id": 2}
    return chiplog.Image(
        _pixels(step),
        caption=f"rank {rank} at {step} <b>",
        boxes={"predictions": {"box_data": [box, middle], "class_labels": {1: "cat", 2: "dog"}}},
        masks={"truth": {"mask_data": mask, "class_labels": {0: "nothing", 1: "cat"}}},
    )


def _values(step: int, rank: int) -> Iterator[tuple[str, MediaValue | list[Any]]]:
    yield "scene", _image(step, rank)
    if rank == 0:
        yield "digits", [chiplog.Image(_pixels(step + 9 * n), caption=f"digit {n}") for n in range(5)]
        yield "report", chiplog.Html(HTML)
        tone = np.sin(np.arange(8_000) * (0.05 + step / 4_000))
        yield "tone", chiplog.Audio(tone, sample_rate=8_000, caption="a tone")
        yield "film", chiplog.Video(np.stack([_pixels(step + n).transpose(2, 0, 1) for n in range(4)]), format="webp")
        yield "cloud", chiplog.Object3D(np.arange(30.0).reshape(10, 3))
        table = chiplog.Table(columns=["id", "loss", "said", "picture"])
        for n in range(N_ROWS if step == STEPS[-1] else 3):
            table.add_data(n, (n * 37 % 101) / 7, f"row {n} <i>", chiplog.Image(_pixels(n)) if n < 3 else None)
        yield "predictions", table
    if step == STEPS[-1]:
        yield LOST, chiplog.Image(_pixels(7))
    if step == STEPS[-1] and rank == 0:
        for form in ("mp4", "webm"):
            frames = np.stack([_pixels(step + n).transpose(2, 0, 1) for n in range(8)])
            yield form, chiplog.Video(frames, format=form, fps=8)


@cache
def logged() -> tuple[tuple[int, int, str, Content], ...]:
    """Return step, rank, key and content of all media and their parts, in the order in which `log()` writes them."""
    found: list[tuple[int, int, str, Content]] = []

    def add(step: int, rank: int, key: str, content: Content, place: dict[str, int]) -> None:
        for name, part in content.parts:
            add(step, rank, f"{key}/{name}", part, place)
        found.append((step, rank, key, replace(content, metadata={**content.metadata, **place})))

    for step in STEPS:
        for rank in range(2):
            for key, value in _values(step, rank):
                for number, item in enumerate(value if isinstance(value, list) else [value]):
                    add(step, rank, key, item.to_content(), {"item": number} if isinstance(value, list) else {})
    return tuple(found)


def digest_of(key: str, step: int = STEPS[-1], rank: int = 0) -> str:
    """Return the digest of a content."""
    return next(_sha256(content) for *place, content in logged() if place == [step, rank, key])


def fill_logged_media(database: duckdb.DuckDBPyConnection) -> None:
    """Write a run `logged` of two ranks with these media, and a run `other` with none."""
    build = RunBuilder(database)
    for run_id in ("logged", "other"):
        build.run(run_id)
        build.ranks(run_id, 2, node="node0", produced=10, ended_s=500, state="finished", exit_code=0)
    build.received(0, 9)
    stored = set()
    for seq, (step, rank, key, content) in enumerate(logged()):
        medium = content.kind, _sha256(content), len(content.data), content.metadata
        build.media(key, *medium, step=step, seq=seq, at=seq / 1e6, where=f"run_id = 'logged' AND rank = {rank}")
        if key != LOST:
            stored.add(medium[1:3])
    for sha256, n_bytes in sorted(stored):
        build.store(sha256, n_bytes)


def store_logged_media(root: Path) -> None:
    """Store the contents, as the collector does."""
    for *_, key, content in logged():
        path = content_path(paths_for_root(root).files, hashlib.sha256(content.data).digest())
        path.parent.mkdir(parents=True, exist_ok=True)
        if key != LOST:
            path.write_bytes(content.data)


def _sha256(content: Content) -> str:
    return hashlib.sha256(content.data).hexdigest()
