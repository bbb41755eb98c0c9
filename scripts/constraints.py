"""Write constraints.txt: the newest versions that pip finds for all dependencies, for each tested Python.

`make constraints` runs it, with a network; ARGS names interpreters (default: python3.11 python3.12 …). A pin that
differs between them has a marker. PyTorch has the version that pyproject.toml names, and what the build in .venv needs:
that is the build for CPUs, so nothing of CUDA is in the list.
"""

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

PYTHONS = ("3.11", "3.12", "3.13")  # tested; the pins of the newest hold for newer ones
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILE = os.path.join(ROOT, "constraints.txt")
FOREIGN = ("nvidia-", "cuda-", "triton")  # of PyTorch's builds for GPUs
HEAD = f"""\
# Versions that make targets install: `make constraints` renews them, `make test LATEST=1` tries the newest instead.
# Resolved for Python {", ".join(PYTHONS)}. Packages of chiplog's users are bounded by pyproject.toml alone.
"""


def declared():
    """Return the requirements of the project, of its build and of the extra `dev`, which names other extras.

    Those of the other frameworks are pinned by tests/integrations/constraints.txt, with what is installed beside them.
    """
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        project = tomllib.load(file)
    extras = project["project"]["optional-dependencies"]
    lines = project["build-system"]["requires"] + project["project"]["dependencies"] + extras["dev"]
    named = {name for line in extras["dev"] for name in Requirement(line).extras if name in extras}
    return [Requirement(line) for line in lines + [line for name in sorted(named) for line in extras[name]]]


def requirements():
    """Return `declared()`, and the requirements of PyTorch in place of it."""
    found = declared()
    torch = next(requirement for requirement in found if requirement.name == "torch")
    of_torch = map(Requirement, importlib.metadata.requires("torch") or ())
    found += [r for r in of_torch if "extra" not in str(r.marker) and not r.name.startswith(FOREIGN)]
    return torch, [str(r) for r in found if r.name not in ("chiplog", "torch")]


def resolve(python, version, lines):
    """Return name -> version of what pip would install into an empty environment of an interpreter.

    Each pin also holds for the first release of that Python: Debian 12 has 3.11.2, and some packages need 3.11.5.
    """
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", os.path.join(folder, "venv")], check=True)
        pip = [os.path.join(folder, "venv/bin/python"), "-m", "pip", "install", "--quiet", "--no-input"]
        subprocess.run([*pip, "--upgrade", "pip"], check=True)  # older ones download each package to read its metadata
        wanted, report = os.path.join(folder, "requirements.txt"), os.path.join(folder, "report.json")
        while True:
            with open(wanted, "w", encoding="utf-8") as file:
                file.write("\n".join(lines))
            resolving = [*pip, "--dry-run", "--ignore-installed", "--report", report, "--requirement", wanted]
            subprocess.run(resolving, check=True)
            with open(report, encoding="utf-8") as file:
                found = [item["metadata"] for item in json.load(file)["install"]]
            needs = {f"{item['name']}<{item['version']}": item.get("requires_python", "") for item in found}
            too_new = [line for line, pythons in needs.items() if f"{version}.0" not in SpecifierSet(pythons)]
            if not too_new:
                break
            lines = lines + too_new
    return {canonicalize_name(item["name"]): item["version"].split("+")[0] for item in found}


def pins(name, versions):
    """Return the lines of one package. versions: for each tested Python; None if it does not need the package."""
    groups = []  # (first Python, version)
    for python, version in zip(PYTHONS, versions, strict=True):
        if version and (not groups or groups[-1][1] != version):
            groups.append((python, version))
    lines = []
    for index, (python, version) in enumerate(groups):
        bounds = [f'python_version >= "{python}"'] if index else []
        if index + 1 < len(groups):
            bounds.append(f'python_version < "{groups[index + 1][0]}"')
        lines.append(f"{name}=={version}" + (f" ; {' and '.join(bounds)}" if bounds else ""))
    return lines


def main():
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="*", default=[f"python{version}" for version in PYTHONS])
    pythons = parser.parse_args().pythons
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    for python in pythons:
        if shutil.which(python) is None:
            sys.exit(f"chiplog: {python} was not found; name interpreters of {', '.join(PYTHONS)} in ARGS")
    found = [subprocess.run([p, "-c", asked], capture_output=True, text=True).stdout.strip() for p in pythons]
    if tuple(found) != PYTHONS:
        sys.exit(
            f"chiplog: interpreters of Python {', '.join(PYTHONS)} are needed in this order, not {', '.join(found)}"
        )
    torch, lines = requirements()
    resolved = []
    for python, version in zip(pythons, PYTHONS, strict=True):
        print(f"resolving for Python {version}", flush=True)
        resolved.append(resolve(python, version, lines))
    names = sorted(set().union(*resolved))
    body = [line for name in names for line in pins(name, [versions.get(name) for versions in resolved])]
    body.append(f"{torch.name}{torch.specifier}")
    with open(FILE, "w", encoding="utf-8") as file:
        file.write(HEAD + "\n".join(sorted(body)) + "\n")
    print(f"wrote constraints.txt: {len(names) + 1} packages")


if __name__ == "__main__":
    main()
