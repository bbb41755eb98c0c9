"""Numbers that come one by one become arrays of bounded size; a path without an ID has the same one each time."""

from pathlib import Path

from chiplog_client.transfer.importers.imported_run import POINTS_MAX, PointBuffer, Points, run_id_of_path


def test_numbers_of_one_call_stay_together_in_arrays_of_bounded_size() -> None:
    buffer = PointBuffer("rank1")
    chunks: list[Points] = []
    n_rows = POINTS_MAX // 2 + 10
    for step in range(n_rows):
        chunks += buffer.add(step, step * 1000, {"a": step, "b": -step})
    chunks += [*buffer.flush(), *buffer.flush()]
    assert [len(chunk.values) for chunk in chunks] == [POINTS_MAX, 20]
    last = chunks[-1]
    assert last.rows is not None
    assert (last.label, last.keys, last.rows.tolist()[:4]) == ("rank1", ["a", "b"], [0, 0, 1, 1])
    assert [last.keys[place] for place in last.key_of[:2]] == ["a", "b"]
    assert (last.steps[-1], last.times[-1], last.values[-1]) == (n_rows - 1, (n_rows - 1) * 1000, 1 - n_rows)


def test_a_path_has_one_run_id_per_format_however_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    found = run_id_of_path("csv", tmp_path / "a.csv")
    assert found == run_id_of_path("csv", tmp_path / "sub" / ".." / "a.csv")
    assert len({found, run_id_of_path("csv", tmp_path / "b.csv"), run_id_of_path("tsv", tmp_path / "a.csv")}) == 3
