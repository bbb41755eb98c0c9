"""Every declared safeguard is in the code, and an existing test detects its removal."""

import os
import random
import re
from pathlib import Path

import pytest

from tests.fault.switch_off import ROOT, declared, switch_off, trouble
from tests.support.marks import marks_of

N_CHOSEN = 12  # of about forty-five whose tests take seconds; `make switch-off` tries all of them
QUICK = ("agent", "collector")  # folders of tests
# Their tests wait for seconds until what has been switched off fails to happen.
WAITING = {"test_service.py", "test_checkpoints.py"}


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


@pytest.mark.parametrize("number", range(N_CHOSEN))
def test_a_safeguard_that_is_switched_off_turns_its_test_red(number: int, testrun_uid: str) -> None:
    """Try another dozen in each run. CHIPLOG_SAFEGUARDS_SEED repeats one."""
    seed = os.environ.get("CHIPLOG_SAFEGUARDS_SEED", testrun_uid)
    quick = list(declared(_is_quick))
    module, safeguard = random.Random(seed).sample(quick, N_CHOSEN)[number]
    outcome = switch_off(module, safeguard, patience_s=120.0)  # a test that hangs is not red
    assert outcome.is_red, f"seed {seed}: {safeguard.promise} [{module}::{safeguard.test}]: {outcome.last_words}"


def _is_quick(path: Path) -> bool:
    folder = path.relative_to(ROOT).parts[1]
    return folder in QUICK and path.name not in WAITING and not marks_of(path) & {"process", "slow"}
