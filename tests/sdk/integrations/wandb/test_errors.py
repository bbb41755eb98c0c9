"""W&B's errors are raised in strict mode, and by reads."""

import pytest

from chiplog.integrations.wandb import errors
from chiplog.values.artifact_value import ArtifactError


def test_an_error_is_raised_in_strict_mode_and_else_written_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.UsageError, match="wrong use"):
        errors.refuse(True, "a wrong use")
    errors.refuse(False, "a wrong use of this test")
    errors.refuse(False, "a wrong use of this test")
    assert capsys.readouterr().err == "chiplog: a wrong use of this test\n"


def test_errors_have_the_classes_and_the_text_of_wandbs() -> None:
    assert issubclass(errors.UnsupportedError, errors.UsageError)
    assert errors.Error("why").message == "why"


def test_a_method_of_a_finished_run_raises_in_strict_mode() -> None:
    class Run:
        id, _is_finished = "r", True

        def __init__(self, is_strict: bool) -> None:
            self._is_strict = is_strict

        @errors.of_open_run
        def log(self) -> str:
            return "logged"

    assert Run(False).log() == "logged"
    with pytest.raises(errors.UsageError, match=r"Run \(r\) is finished. The call to `log` will be ignored"):
        Run(True).log()


@pytest.mark.parametrize("kind", [errors.CommError, ValueError, ArtifactError])
def test_a_read_that_fails_raises_the_errors_of_wandb_and_of_chiplog(kind: type[Exception]) -> None:
    with pytest.raises(kind, match="artifact 'a' is unknown"), errors.artifact_errors():
        raise ArtifactError("artifact 'a' is unknown")
    with pytest.raises(errors.UsageError, match=r"Run \(r\) is finished"), errors.artifact_errors("r"):
        raise ArtifactError("artifact 'a' is unknown")
