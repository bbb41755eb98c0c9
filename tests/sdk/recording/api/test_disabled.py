"""A run that records nothing has each public name of `Run`, so a training needs no check."""

import chiplog
from chiplog.recording.api.disabled import DisabledRun
from chiplog.recording.run.run import Run


def test_each_method_of_a_run_that_the_package_offers_is_there() -> None:
    named = [name for name in chiplog.__all__ if hasattr(Run, name)]
    assert {"log", "finish", "phase", "step", "data", "save", "alert", "define_metric", "watch"} <= set(named)
    assert [name for name in named if not hasattr(DisabledRun(), name)] == []


def test_calls_take_anything_and_return_what_a_training_goes_on_with() -> None:
    run = DisabledRun()
    run.log({"loss": float("nan")}, "step", 1, unknown=2)
    loader = iter([1, 2])
    assert run.data(loader) is loader
    assert run.save("missing") == []
    with run.step(), run.phase("forward"):
        run.finish(exit_code=3)

    @run.phase("decorated")
    def double(value: int) -> int:
        return 2 * value

    assert double(2) == 4


def test_config_and_summary_keep_what_is_set() -> None:
    run = DisabledRun()
    run.config["lr"] = 0.1
    run.summary["best"] = 1
    assert run.config["lr"] == 0.1
    assert run.summary["best"] == 1
