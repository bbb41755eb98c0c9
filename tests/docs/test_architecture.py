"""docs/architecture.md: its packages, wheels and the names in its list of places are those of the code."""

import re
import tomllib
from pathlib import Path

from tests.support.packages import PACKAGES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
PLACES = PAGE.split("### Where do I find what")[1].split("[Modules]")[0]


def test_each_package_is_listed_with_its_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    in_sdk = project["tool"]["chiplog"]["sdk"]["packages"]
    wheels = {
        path.relative_to(ROOT).as_posix(): "chiplog-sdk" if name in in_sdk else "chiplog"
        for name, path in PACKAGES.items()
    }
    table = PAGE.split("## Where the code is")[1].split("###")[0]
    assert dict(re.findall(r"^\| `([^`]+)` \| (\S+) \|", table, re.MULTILINE)) == wheels


def test_each_name_in_the_list_of_places_is_in_a_file_of_its_row() -> None:
    missing = []
    for row in PLACES.splitlines():
        words = re.findall(r"`([\w./]+)`", row)
        files = [ROOT / word for word in words if (ROOT / word).is_file()]
        text = "".join(file.read_text(encoding="utf-8") for file in files)
        names = [word for word in words if re.fullmatch(r"[A-Za-z_][\w.]*", word) and not word.endswith(".sql")]
        missing += [word for name in names for word in name.split(".") if not re.search(rf"\b{word}\b", text)]
    assert missing == []
    assert {"SYSTEM_METRICS", "scan_records", "COMMANDS"} <= set(re.findall(r"`([\w.]+)`", PLACES))
