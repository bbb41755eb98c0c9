"""The config as W&B has it."""

import pytest

from chiplog.integrations.wandb.state.run_config import Config


def test_a_config_is_a_dict_with_attributes_and_the_words_of_wandb() -> None:
    config = Config()
    config.update({"lr": 0.1}, allow_val_change=True)
    config.setdefaults({"lr": 1, "depth": 2})
    config.width = 3
    assert config.as_dict() == {"lr": 0.1, "depth": 2, "width": 3}
    assert (config.lr, config["depth"], len(config), repr(config)) == (0.1, 2, 3, repr(config.as_dict()))
    del config["depth"]
    config.persist()
    assert "depth" not in config
    with pytest.raises(AttributeError):
        _ = config.typo
    with pytest.raises(AttributeError):
        _ = config._private


def test_former_entries_are_there_until_they_are_set_again() -> None:
    config = Config(former=lambda: {"lr": 0.5, "old": 1})
    config.lr = 0.1
    assert dict(config) == {"lr": 0.1, "old": 1}
    assert config.old == 1


def test_each_change_is_checked_first() -> None:
    def check() -> None:
        raise RuntimeError("finished")

    config = Config(check=check)
    for change in (lambda: config.update(a=1), lambda: config.__setitem__("a", 1), lambda: config.__delitem__("a")):
        with pytest.raises(RuntimeError, match="finished"):
            change()
