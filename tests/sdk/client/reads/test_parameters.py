"""What the readers of runs are asked for."""

from chiplog_client.reads.parameters import STEP_MAX, STEP_MIN, BadRequestError


def test_steps_have_the_bounds_of_64_bits() -> None:
    assert (STEP_MIN, STEP_MAX) == (-(2**63), 2**63 - 1)


def test_a_bad_request_is_a_value_error_with_its_text() -> None:
    assert isinstance(BadRequestError("step=x"), ValueError)
    assert str(BadRequestError("step=x")) == "step=x"
