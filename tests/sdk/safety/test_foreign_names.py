"""Names of W&B and MLflow that chiplog does not have: objects that take every use, so that a script trains on."""

import copy
import math
import pickle
from typing import Any

import pytest

from chiplog.safety.foreign_names import NoOp, is_stand_in, stand_in, unavailable


def test_a_table_of_another_logger_takes_every_use_and_holds_nothing() -> None:
    table: Any = stand_in("Table")(columns=["a", "b"])
    table.add_data(1, 2)
    table["row"] = 3
    with table as opened:
        opened.deeper.still("x")
    assert not table and len(table) == 0 and list(table) == [] and "row" not in table
    assert next(iter(table.rows), None) is None
    assert f"{table:>10}" == str(table) == "<not available in chiplog>"


def test_in_arithmetic_it_is_no_number_and_no_comparison_holds() -> None:
    api: Any = stand_in("Api")()
    best = api.runs("a/b")[0].summary["loss"]
    assert math.isnan(float(best))
    assert isinstance(1 + 2 * best - best / 3, NoOp)
    assert not best < 1 and not best > 1
    assert sorted([best, best]) == [best, best]
    assert list(range(best)) == []


def test_a_class_of_another_logger_is_a_class() -> None:
    table: Any = stand_in("Table")

    class Mine(table):  # type: ignore[misc]
        pass

    assert isinstance(Mine(1, name="x"), table)
    assert not isinstance("text", table)
    assert isinstance(table.MAX_ROWS, NoOp)


def test_a_decorated_function_still_runs() -> None:
    trace: Any = stand_in("trace")

    @trace
    def plain(number: int) -> int:
        return number + 1

    @trace(name="a span")
    def with_options(number: int) -> int:
        return number + 2

    assert (plain(1), with_options(1)) == (2, 3)


@pytest.mark.parametrize("name", ["CommError", "MlflowException"])
def test_an_exception_can_be_caught_and_lets_others_pass(name: str) -> None:
    for error in (stand_in(name), getattr(stand_in("errors"), name)):
        with pytest.raises(ZeroDivisionError):
            try:
                raise ZeroDivisionError
            except error:
                pytest.fail("it is no exception of another logger")
        with pytest.raises(error):
            raise error("unused")


def test_protocols_of_python_find_no_methods_that_do_nothing() -> None:
    image: Any = stand_in("Image")("file")
    assert not hasattr(image, "__array__")
    with pytest.raises(AttributeError):
        image.__cuda_array_interface__  # noqa: B018 - the look-up is the test
    assert isinstance(copy.deepcopy(NoOp()), NoOp)
    assert isinstance(pickle.loads(pickle.dumps(NoOp())), NoOp)


def test_objects_and_classes_of_foreign_names_are_recognised() -> None:
    settings: Any = stand_in("Settings")

    class Mine(settings):  # type: ignore[misc]
        pass

    assert all(map(is_stand_in, (settings, settings(), settings().deeper, Mine(), Mine, stand_in("errors"))))
    assert not any(map(is_stand_in, (1.0, "text", float, None, stand_in("CommError"))))


def test_the_line_of_a_name_of_mlflow_names_what_records_it() -> None:
    assert "MLFLOW_TRACKING_URI=chiplog://" in unavailable("chiplog", "log_metric").message
    assert "MLFLOW" not in unavailable("chiplog", "Api").message + unavailable("run", "log_metric").message
