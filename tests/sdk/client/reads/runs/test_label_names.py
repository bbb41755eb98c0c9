"""The only, generated label of a run is shown as the run to people; programs get the label."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chiplog.identity.process_info import random_word
from chiplog_cli.root import main
from chiplog_client.reads.runs.label_names import label_names
from tests.support.hand_written import hand_written, kept_open
from tests.support.marks import everyday
from tests.support.run_builder import RunBuilder
from tests.support.safeguard import proves

LABEL = "gpu-7.cluster-x4k9mz"


def of(*labels: str | None, host: str | None = "node-1") -> list[dict[str, Any]]:
    return [{"label": label, "hostname": host} for label in labels]


@proves(
    "named-label-kept",
    "a label that the user gave is shown as it is",
    value="{label: name or run_id for label, _ in known}",
)
def test_only_a_single_generated_label_has_another_name() -> None:
    generated = f"node-1-{random_word()}"
    assert label_names("r", "first try", of(generated)) == {generated: "first try"}
    assert label_names("r", None, of(generated, generated)) == {generated: "r"}, "two attempts of one label"
    kept = (
        *(of("rank0"), of(), of(None), of(generated, "eval"), of("node-1-eval"), of("node-1")),
        *(of(f"{generated}.77"), of(generated, host=None), of(generated, host="node-2"), of("-x4k9mz", host="")),
    )
    for labels in kept:
        assert label_names("r", "first try", labels) == {}, labels


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("root")
    with hand_written(root) as database:
        build = RunBuilder(database, "TIMESTAMP '2026-01-02'")
        for run_id, name in (("r1", "baseline"), ("r2", None)):
            build.run(run_id, name=name, primary_label=LABEL)
            ended = {"state": "failed", "exit_code": 1, "ended_s": 0, "reason": "boom"}
            build.label(run_id, LABEL, is_primary=True, hostname="gpu-7.cluster", **ended)
        build.metrics({"loss": "step"}, steps=9, at=0)
        build.console("hello")
        build.event("alert", "loss is NaN", level="error", seq=20)
    with kept_open(root):
        yield root


@pytest.mark.parametrize(
    ("command", "shown"),
    everyday(
        2,
        [
            (("show", "r1"), "baseline *"),
            (("show", "r2"), "primary r2"),
            (("logs", "r1"), "baseline | hello"),
            (("top", "r1", "--once"), "baseline  failed     8"),
            (("plot", "r1", "loss"), "baseline"),
            (("plot", "r2", "loss"), "r2"),
        ],
    ),
)
def test_people_see_the_run_in_place_of_the_label(
    root: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], shown: str
) -> None:
    assert main([*command, "--dir", str(root)]) == 0
    text = capsys.readouterr().out
    assert shown in text
    assert not re.search("x4k9mz", text), text


@pytest.mark.full
def test_programs_get_the_label(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(*command: str) -> Any:
        assert main([*command, "--dir", str(root)]) == 0
        return json.loads(capsys.readouterr().out)

    found = answer("show", "r1", "--format", "json")
    assert (found["labels"][0]["label"], found["primary_label"]) == (LABEL, LABEL)
    assert found["label_names"] == {LABEL: "baseline"}
    assert [row["label"] for row in answer("top", "r1", "--format", "json")] == [LABEL]
    assert answer("sql", "SELECT DISTINCT label FROM console", "--format", "json") == [{"label": LABEL}]
