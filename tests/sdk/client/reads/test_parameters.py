"""What the readers of runs are asked for."""

import pytest

from chiplog_client.reads.parameters import STEP_MAX, STEP_MIN, BadRequestError, require_positive
from chiplog_client.results.result import QueryError


def test_steps_have_the_bounds_of_64_bits() -> None:
    assert (STEP_MIN, STEP_MAX) == (-(2**63), 2**63 - 1)


def test_a_bad_request_is_a_value_error_with_its_text() -> None:
    assert isinstance(BadRequestError("step=x"), ValueError)
    assert str(BadRequestError("step=x")) == "step=x"


def test_a_number_below_1_is_refused_with_its_name() -> None:
    require_positive("limit", 1)
    with pytest.raises(QueryError, match="limit is 0; give 1 or more"):
        require_positive("limit", 0)
