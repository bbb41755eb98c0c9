"""The table of runs, and the names of columns to choose from."""

from chiplog_page.routes.runs import KEYS_MAX
from tests.support.page_client import PageClient


def test_all_runs_with_chosen_columns(reader: PageClient) -> None:
    found = reader.get("runs?config=lr&config=none&summary=loss")
    names = found["columns"]
    rows = {row[0]: dict(zip(names, row, strict=True)) for row in found["rows"]}
    assert rows.keys() == {"large", "healthy", "even"}
    healthy = rows["healthy"]
    assert (healthy["project"], healthy["n_labels"], healthy["state"]) == ("gpt", 8, "running")
    assert (healthy["config.lr"], healthy["config.none"]) == (0.5, None)
    assert 0 < healthy["summary.loss"] < 1, "a number, so that it sorts as one"
    assert rows["even"]["config.lr"] is None
    assert {"pending", "lost"} <= set(names)


def test_too_many_columns_are_refused(reader: PageClient) -> None:
    answer = reader.ask("/api/runs?" + "&".join(f"config=k{n}" for n in range(KEYS_MAX + 1)))
    assert (answer.status, answer.json["error"]["message"]) == (400, "21 values of config; give at most 20")


def test_names_to_choose_from(reader: PageClient) -> None:
    assert reader.get("keys") == {"config": ["lr"], "summary": ["loss"], "curve": ["loss"]}


def test_small_curves_of_runs_that_logged_a_metric(reader: PageClient) -> None:
    found = reader.get("sparklines?key=loss&run=healthy&run=gone&points=4")
    assert found.keys() == {"healthy"} and len(found["healthy"]) == 4
    answer = reader.ask("/api/sparklines?key=loss")
    assert (answer.status, answer.json["error"]["message"]) == (400, "0 values of run; give 1 to 100")
