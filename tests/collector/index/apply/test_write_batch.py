"""Rows on their way into DuckDB: the columns hold every point once, sorted by key, producer and step."""

import random

import numpy as np

from chiplog_collector.index.apply.write_batch import Batch, Matrix, turn


def matrix(rows: list[tuple[int, int, int, int, tuple[float, ...]]]) -> Matrix:
    producer, lead, seq, ts, values = zip(*rows, strict=True)
    as_int64 = [np.array(column, dtype=np.int64) for column in (lead, seq, ts)]
    return Matrix(np.array(producer, dtype=np.int32), *as_int64, np.array(values, dtype=np.float64))


def test_each_point_is_there_once_sorted_by_key_producer_and_step() -> None:
    print("seed 7")
    chooser = random.Random(7)
    expected, groups, seq = [], {}, 0
    for keys in ((1, 3), (2,), (3, 5, 1)):
        groups[keys] = []
        for _ in range(3):
            rows = []
            for _ in range(chooser.randrange(1, 6)):
                seq += 1
                values = tuple(chooser.random() for _ in keys)
                rows.append((chooser.randrange(3), chooser.randrange(9), seq, 1000 + seq, values))
                expected += [
                    (key, rows[-1][0], rows[-1][1], seq, value) for key, value in zip(keys, values, strict=True)
                ]
            groups[keys].append(matrix(rows))
    columns = turn(groups)
    assert columns is not None
    found = list(zip(*(columns[name].tolist() for name in ("key", "producer", "lead", "seq", "value")), strict=True))
    assert sorted(found) == sorted(expected)
    assert [row[0] for row in found] == sorted(row[0] for row in found)
    for keys in groups:
        for key in keys:
            of_group = [row for row in found if row[0] == key]
            assert len(of_group) == sum(row[0] == key for row in expected)
    assert columns["ts"].dtype == np.dtype("datetime64[us]")


def test_nothing_makes_no_columns() -> None:
    assert turn({}) is None


def test_a_batch_counts_points_and_rows() -> None:
    batch = Batch()
    batch.n_points = 3
    batch.add("texts", (1,))
    batch.add("texts", (2,))
    batch.add("events", (3,))
    assert batch.n_rows == 6
    assert batch.rows == {"texts": [(1,), (2,)], "events": [(3,)]}
