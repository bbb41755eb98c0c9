"""What is declared as a safeguard stands in the code, and is noticed by a test that exists."""

from tests.fault.switch_off import declared, trouble


def test_every_safeguard_can_be_switched_off() -> None:
    safeguards = list(declared())
    assert safeguards
    assert [text for module, safeguard in safeguards if (text := trouble(module, safeguard))] == []


def test_no_promise_is_declared_twice() -> None:
    promises = [safeguard.promise for _, safeguard in declared()]
    assert sorted(set(promises)) == sorted(promises)
