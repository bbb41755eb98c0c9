"""Write the sources of the two wheels of a release: `python scripts/split_wheels.py build/wheels`.

chiplog-sdk   what ranks and nodes need: the SDK with its C part, the agent, the schemas
chiplog       the rest, which requires chiplog-sdk of the same version

No file is in both. `pip install .` and `pip install -e .` build one wheel of everything from this tree; `pip install
chiplog` installs both. Build them with `pip wheel build/wheels/chiplog`, and chiplog-sdk with cibuildwheel, for it has
C. pyproject.toml lists what the first one has, in `tool.chiplog.sdk`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SDK, REST = "chiplog-sdk", "chiplog"
SHARED = ("LICENSE", "README.md")
SCRIPTS = ("scripts/build_native.py", "scripts/check_wheel.py")
HOOK = "tool.hatch.build.targets.wheel.hooks.custom"


def projects(source):
    """Return the parts of pyproject.toml that differ, by distribution. source: the parsed file."""
    project, sdk = source["project"], source["tool"]["chiplog"]["sdk"]
    packages = source["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needs = {_name(line): line for line in project["dependencies"]}
    extras, points = project["optional-dependencies"], project["entry-points"]
    in_sdk = {
        group: {name: target for name, target in names.items() if target.split(":")[0].split(".")[0] in sdk["packages"]}
        for group, names in points.items()
    }
    rest = {
        group: {name: names[name] for name in names.keys() - in_sdk[group].keys()} for group, names in points.items()
    }
    return {
        SDK: {
            "packages": [path for path in packages if os.path.basename(path) in sdk["packages"]],
            "dependencies": [needs[name] for name in sdk["dependencies"]],
            "optional-dependencies": {name: extras[name] for name in sdk["extras"]},
            "scripts": {},
            "entry-points": in_sdk,
        },
        REST: {
            "packages": [path for path in packages if os.path.basename(path) not in sdk["packages"]],
            "dependencies": [
                f"{SDK}=={project['version']}",
                *(needs[n] for n in needs if n not in sdk["dependencies"]),
            ],
            "optional-dependencies": {name: lines for name, lines in extras.items() if name not in ("dev", "docs")},
            "scripts": project["scripts"],
            "entry-points": rest,
        },
    }


def text_of(source, name, parts):
    """Return the pyproject.toml of a distribution. A JSON text or list is one of TOML, too."""
    same = ("version", "description", "readme", "license", "license-files", "requires-python")
    project = {"name": name, **{key: source["project"][key] for key in same}, "dependencies": parts["dependencies"]}
    tables = {
        "build-system": source["build-system"],
        "project": project,
        "project.optional-dependencies": parts["optional-dependencies"],
        "project.scripts": parts["scripts"],
        **{f'project.entry-points."{group}"': names for group, names in parts["entry-points"].items()},
        "tool.hatch.build.targets.wheel": {"packages": parts["packages"]},
    }
    if name == SDK:
        tables[HOOK] = {"path": SCRIPTS[0]}
        tables["tool.cibuildwheel"] = {k: v for k, v in source["tool"]["cibuildwheel"].items() if k != "environment"}
        tables["tool.cibuildwheel.environment"] = source["tool"]["cibuildwheel"]["environment"]
    lines = []
    for table, values in tables.items():
        if values:
            lines += [f"[{table}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)


def _name(requirement):
    return re.match(r"[A-Za-z0-9._-]+", requirement)[0]


def write_sources(folder):
    """Write both source trees, in place of those that are there. Return their paths."""
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        source = tomllib.load(file)
    tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    made = []
    for name, parts in projects(source).items():
        target = os.path.join(folder, name)
        shutil.rmtree(target, ignore_errors=True)
        folders = tuple(f"{path}/" for path in parts["packages"])
        for path in tracked:
            if path.startswith(folders) or path in SHARED or (name == SDK and path in SCRIPTS):
                place = os.path.join(target, path)
                os.makedirs(os.path.dirname(place), exist_ok=True)
                shutil.copyfile(os.path.join(ROOT, path), place)
        with open(os.path.join(target, "pyproject.toml"), "w", encoding="utf-8") as file:
            file.write(text_of(source, name, parts))
        made.append(target)
    return made


if __name__ == "__main__":
    print("\n".join(write_sources(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build", "wheels"))))
