"""Every declared safeguard is in the code, and an existing test detects its removal."""

import os
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.fault.switch_off import declared, switch_off, trouble, undeclared
from tests.support.marks import marks_of
from tests.support.safeguard import ROOT, Safeguard, changed_file, proven_in, proves

pytestmark = pytest.mark.xdist_group("switch_off")  # one worker parses all modules
N_EVERYDAY = 1  # in `make test`
N_CHOSEN = 8  # of about a hundred whose tests take seconds; `make switch-off` tries all of them
QUICK = ("agent", "collector")  # folders of tests
# Their tests wait for seconds until what has been switched off fails to happen.
WAITING = {"test_service.py", "test_checkpoints.py", "test_demand.py", "test_sampler_thread.py"}


def test_every_safeguard_can_be_switched_off() -> None:
    safeguards = list(declared())
    assert safeguards
    assert [text for module, safeguard in safeguards if (text := trouble(module, safeguard))] == []


def test_every_safeguard_in_the_product_is_declared() -> None:
    assert undeclared() == []


def test_no_promise_is_declared_twice() -> None:
    promises = [safeguard.promise for _, safeguard in declared()]
    assert sorted(set(promises)) == sorted(promises)


def test_what_proves_a_safeguard_is_a_function_of_its_module() -> None:
    """The test of a class has another name in pytest, under which nothing would run it."""
    modules = sorted((ROOT / "tests").rglob("test_*.py"))
    assert [path.name for path in modules if re.search("^ +@proves", path.read_text(), re.MULTILINE)] == []


def test_a_module_proves_what_its_decorators_declare() -> None:
    def test_lines() -> None: ...

    for declare in (proves("each-line", "every line is read", value="()"), proves("used", "a line is used")):
        assert declare(test_lines) is test_lines
    assert set(proven_in(__name__)) == {
        Safeguard("every line is read", "each-line", "test_lines", value="()"),
        Safeguard("a line is used", "used", "test_lines"),
    }


@pytest.mark.parametrize(
    "number", [*range(N_EVERYDAY), *(pytest.param(n, marks=pytest.mark.full) for n in range(N_EVERYDAY, N_CHOSEN))]
)
def test_a_safeguard_that_is_switched_off_turns_its_test_red(number: int, testrun_uid: str) -> None:
    """Try a few others in each run. CHIPLOG_SAFEGUARDS_SEED repeats one."""
    seed = os.environ.get("CHIPLOG_SAFEGUARDS_SEED", testrun_uid)
    quick = list(declared(_is_quick))
    module, safeguard = random.Random(seed).sample(quick, N_CHOSEN)[number]
    outcome = switch_off(module, safeguard, patience_s=300.0)  # a test that hangs is not red
    assert outcome.is_red, f"seed {seed}: {safeguard.promise} [{module}::{safeguard.test}]: {outcome.last_words}"


CODE = """\
def read(path):
    # the reason
    if (  # safeguard: checked
        path.exists()  # safeguard: not-a-statement
        and path
    ):
        return path
    for line in path:  # safeguard: each-line
        use(line)  # a reason  # safeguard: used, used-again
    # safeguard: last-value
    value = (one, "two")
    try:
        value += 1
    except OSError as error:  # safeguard: twice
        raise  # safeguard: twice
"""


@pytest.mark.parametrize(
    ("anchor", "fields", "old", "new"),
    [
        ("used", {}, "use(line)", "pass"),
        ("used-again", {}, "use(line)", "pass"),
        ("checked", {"condition": False}, "path.exists()  # safeguard: not-a-statement\n        and path", "False"),
        ("checked", {"part": "and path"}, "and path\n", "\n"),
        ("checked", {"new": "return None"}, CODE[CODE.index("if (") : CODE.index("    for")], "return None\n"),
        ("each-line", {"value": "()"}, "in path:", "in ():"),
        ("each-line", {"new": "while True:"}, "for line in path:", "while True:"),
        ("last-value", {"value": "None"}, '(one, "two")', "None"),
        ("last-value", {"part": '"two"', "new": "2"}, '"two"', "2"),
        ("last-value", {"new": "one = 1\n...\nif one:\n    pass"}, 'value = (one, "two")', ""),
    ],
)
def test_a_statement_is_switched_off_as_declared(
    anchor: str, fields: dict[str, Any], old: str, new: str, tmp_path: Path
) -> None:
    changed = changed_file(_declaration(anchor, **fields), _product(tmp_path))[1]
    if "..." in fields.get("new", ""):
        new = 'one = 1\n    value = (one, "two")\n    if one:\n        pass'
    assert changed == CODE.replace(old, new)


@pytest.mark.parametrize(
    ("anchor", "fields", "reason"),
    [
        ("absent", {}, "no line has the comment `# safeguard: absent`"),
        ("twice", {}, "safeguard twice is at sdk/module.py:14, sdk/module.py:15; keep one of them"),
        ("not-a-statement", {}, "safeguard not-a-statement at sdk/module.py:4: no statement begins on this line"),
        ("used", {"condition": True}, "safeguard used at sdk/module.py:9: Expr has no condition"),
        ("each-line", {"part": "use"}, "safeguard each-line at sdk/module.py:8: it has 'use' 0 times, not once"),
        ("each-line", {"new": "1 +:"}, "safeguard each-line at sdk/module.py:8: invalid syntax (each-line, line 8)"),
    ],
)
def test_what_cannot_be_switched_off_is_one_line(
    anchor: str, fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    module = Path("tests/test_module.py")
    assert trouble(module, _declaration(anchor, **fields), _product(tmp_path)) == f"{module}: {reason}"


def test_a_safeguard_that_no_test_declares_is_one_line(tmp_path: Path) -> None:
    lines = undeclared(_product(tmp_path))
    reason = "no test declares the safeguard each-line; declare it, or remove the comment"
    assert f"sdk/module.py:8: {reason}" in lines
    assert len(lines) == 8


def test_a_line_of_sql_is_switched_off_in_part(tmp_path: Path) -> None:
    query = "SELECT a,\n  max(b)  -- safeguard: largest\nFROM c;\n"
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas/views.sql").write_text(query)
    changed = changed_file(_declaration("largest", part="max", new="min"), tmp_path)
    assert changed == (Path("schemas/views.sql"), query.replace("max", "min"))


def _declaration(anchor: str, **fields: Any) -> Safeguard:
    return Safeguard("a promise", anchor, test="test_it", **fields)


def _product(root: Path) -> Path:
    (root / "sdk").mkdir()
    (root / "sdk/module.py").write_text(CODE)
    return root


def _is_quick(path: Path) -> bool:
    folder = path.relative_to(ROOT).parts[1]
    return folder in QUICK and path.name not in WAITING and "process" not in marks_of(path)
