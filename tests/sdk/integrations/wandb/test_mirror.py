"""`mirror()`: W&B's call comes first and stays as it is; what follows it never fails."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from chiplog.integrations import wandb
from chiplog.integrations.wandb.mirror import _after, _begin, _followers, _log_both, converted


def test_what_follows_a_call_gets_its_result_and_never_changes_it() -> None:
    seen: list[Any] = []

    def fail(result: int, *given: Any, **named: Any) -> None:
        seen.append((result, given, named))
        raise ZeroDivisionError

    assert _after(lambda a, *, b: a + b, fail)(1, b=2) == 3
    assert seen == [(3, (1,), {"b": 2})]
    with pytest.raises(TypeError):
        _after(lambda: 0, fail)(1)
    assert len(seen) == 1, "a call that raised is not followed"


def test_a_value_that_cannot_be_converted_does_not_keep_wandb_from_logging() -> None:
    broken = type("Image", (), {"__module__": "wandb.sdk.data_types.image"})()
    assert _log_both(lambda run, data, step: (data, step))(None, {"x": broken}, step=3) == ({"x": broken}, 3)


@pytest.mark.parametrize("found", [None, wandb])
def test_without_the_real_wandb_it_is_one_line(
    found: ModuleType | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", found)  # None: it cannot be imported
    wandb.mirror()
    assert capsys.readouterr().err.startswith("chiplog: mirror() ")


def test_videos_of_gymnasium_come_from_the_real_wandb_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(sys.modules[_begin.__module__], "init", lambda **named: given.update(named))
    real = type("Run", (), {"disabled": False, "id": "r", "settings": SimpleNamespace(mode="online")})()
    _begin(real, monitor_gym=True, sync_tensorboard=True)
    assert (given["id"], given["sync_tensorboard"], given["monitor_gym"]) == ("r", True, None)


def test_settings_that_were_given_count_and_defaults_of_wandb_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(sys.modules[_begin.__module__], "init", lambda **named: given.update(named))
    real = type("Run", (), {"disabled": False, "id": "r", "settings": SimpleNamespace(mode="online", x_label="a")})()
    fields = {"run_notes": "n", "x_primary": False, "mode": "offline", "strict": True}
    for settings in (fields, SimpleNamespace(**fields, console="auto", model_fields_set=set(fields))):
        _followers.pop(real, None)
        _begin(real, settings=settings)
        assert (given["settings"], given["mode"]) == ({"run_notes": "n", "x_primary": False}, "online")
    _followers.pop(real, None)
    real.settings.mode = "shared"
    _begin(real, settings=fields)
    assert (given["settings"]["x_label"], given["mode"], given["settings"]["run_notes"]) == ("a", "shared", "n")


def test_values_are_converted_wherever_they_are_and_others_stay() -> None:
    kind = type("Table", (), {"__module__": "wandb.sdk.data_types.table", "columns": ["a"], "data": [[1]]})
    bins = {"__module__": "wandb.sdk.data_types.histogram", "bins": [0, 1, 2], "histogram": [3, 4]}
    found = converted({"deep": [kind()], "h": type("Histogram", (), bins)(), "x": 1.0})
    assert (found["deep"][0].columns, found["deep"][0].data) == (["a"], [[1]])
    assert (found["h"].edges, found["h"].counts, found["x"]) == ((0, 1, 2), (3, 4), 1.0)
    page = type("Html", (), {"__module__": "wandb.sdk.data_types.html", "html": "<p>hi</p>"})
    assert converted(page()).html == "<p>hi</p>"
