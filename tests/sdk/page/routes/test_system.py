"""Samples of the machines of a run, over HTTP."""

from collections.abc import Iterator

import pytest

from tests.support.hand_written import hand_written, kept_open
from tests.support.page_client import PageClient, serving
from tests.support.sampled_run import fill_sampled_run


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    root = tmp_path_factory.mktemp("sampled")
    with hand_written(root) as database:
        fill_sampled_run(database)
    with kept_open(root), serving(root) as client:
        yield client.sign_in()


def test_names_and_curves_are_asked_for_apart(sampled: PageClient) -> None:
    assert len(sampled.get("runs/sampled/system")["marks"]) == 2
    [curve] = sampled.get("runs/sampled/system/curves?name=hw.gpu.utilization&points=10")
    assert curve["kind"] == "lines" and 2 < len(curve["ts"]) <= 10


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "0 values of name; give 1 to 20"),
        ("name=a&points=1", "points=1 is not within 10 and 400"),
        ("name=a&first=9&last=9", "last=9 is not after first=9"),
    ],
)
def test_bad_input_is_refused(sampled: PageClient, query: str, message: str) -> None:
    answer = sampled.ask(f"/api/runs/sampled/system/curves?{query}")
    assert (answer.status, answer.json["error"]["message"]) == (400, message)
