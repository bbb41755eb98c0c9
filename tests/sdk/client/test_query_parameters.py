"""Parameters of a query: what a user may give, and what is refused."""

from datetime import UTC, datetime

import numpy as np
import pytest

from chiplog_client.client import QueryError, connect

pytestmark = pytest.mark.usefixtures("no_environment")


def test_parameters_may_be_times_arrays_scalars_and_tuples(where):
    with connect(dir=where.root) as client:
        since = datetime(2026, 1, 2, 0, 10)
        named = "SELECT count(*) AS n FROM metrics WHERE ts >= $since"
        assert client.sql(named, {"since": since}).rows() == [{"n": 400}]
        assert client.sql(named, {"since": since.replace(tzinfo=UTC)}).rows() == [{"n": 400}]
        assert client.sql("SELECT ? + ? AS a", (np.float64(1.5), np.int32(2))).rows() == [{"a": 3.5}]
        assert client.sql("SELECT count(*) AS n FROM metrics WHERE step = ANY(?)", [(1, 2, 3)]).rows() == [{"n": 3}]


@pytest.mark.parametrize("params", [[object()], {"a": {1, 2}}, [1 << 70], ["\ud800"], "text", 5])
def test_a_parameter_that_is_no_plain_value_is_named(where, params):
    with connect(dir=where.root) as client, pytest.raises(QueryError, match=r"parameter .* is|params is") as error:
        client.sql("SELECT ?", params)
    assert error.value.kind == "refused"
