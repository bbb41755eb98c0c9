"""Every declared safeguard is in the code, and an existing test detects its removal."""

import re

from tests.fault.switch_off import ROOT, declared, trouble


def test_every_safeguard_can_be_switched_off() -> None:
    safeguards = list(declared())
    assert safeguards
    assert [text for module, safeguard in safeguards if (text := trouble(module, safeguard))] == []


def test_no_promise_is_declared_twice() -> None:
    promises = [safeguard.promise for _, safeguard in declared()]
    assert sorted(set(promises)) == sorted(promises)


def test_no_module_has_two_lists_of_which_the_second_hides_the_first() -> None:
    modules = sorted((ROOT / "tests").rglob("test_*.py"))
    assert [
        path.name for path in modules if len(re.findall("^SAFEGUARDS\\b", path.read_text(), re.MULTILINE)) > 1
    ] == []
