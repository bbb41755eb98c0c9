"""Make .venv and install chiplog into it, editable, with one extra: `python3 scripts/bootstrap.py dev|docs|torch`.

constraints.txt names the versions of all dependencies; with the variable LATEST=1 the newest ones are installed.

The script records the installed extras in .venv/.chiplog-installed, so that a second call does nothing. It installs
again when pyproject.toml or constraints.txt has changed, or LATEST, and recreates .venv when the clone was moved or its
Python is gone.

The script runs before the version of Python is checked: every Python 3 must be able to parse it, with only the standard
library.
"""

import collections
import glob
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time

PYTHON_MIN = (3, 11)
# extra -> the extras that it includes, with itself
EXTRAS = {"docs": ("docs",), "torch": ("torch",), "dev": ("dev", "docs", "torch")}
STILL_INTERVAL_S = 15.0  # how often a long download prints a sign of life
LINES_SHOWN = 40  # of pip, when it fails
NOT_BUILT = "not built"  # in the stamp: the next call tries again
CONSTRAINTS = "constraints.txt"
LATEST = os.environ.get("LATEST", "") not in ("", "0")
NATIVE = ("sdk/chiplog/native/hot_path.c", "scripts/build_native.py")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
VENV_PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, ".chiplog-installed")


def say(text):
    """Print one line now."""
    print(text, flush=True)


def fail(text):
    """End with one line on stderr."""
    sys.exit(f"chiplog: {text}")


def check_python():
    """Refuse a Python that is too old or cannot make a virtual environment."""
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < PYTHON_MIN:
        fail(f"{sys.executable} is Python {found}, 3.11 or newer is needed; name one: make PYTHON=/path/to/python3.11")
    try:
        import ensurepip  # noqa: F401  # Debian packages it separately
        import venv  # noqa: F401
    except ImportError as error:
        fail(f"{sys.executable} has no module {error.name}; install it (Debian, Ubuntu: apt-get install python3-venv)")


def wanted(extra):
    """Return the expected lines of the stamp: path, what decides the versions, the C source, and each extra."""
    versions = digest("pyproject.toml", CONSTRAINTS) + (time.strftime(" latest of %Y-%m-%d") if LATEST else "")
    return [ROOT, versions, digest(*NATIVE), *EXTRAS[extra]]


def digest(*paths):
    """Return the SHA-256 of files of this repository."""
    found = hashlib.sha256()
    for path in paths:
        with open(os.path.join(ROOT, path), "rb") as file:
            found.update(file.read())
    return found.hexdigest()


def installed():
    """Return the lines of the stamp; none without a stamp."""
    try:
        with open(STAMP, encoding="utf-8") as stamp:
            return stamp.read().splitlines()
    except OSError:
        return []


def venv_works():
    """Return True if .venv was made in this directory and its Python starts and is new enough."""
    stamp = installed()
    if stamp and stamp[0] != ROOT:
        return False
    check = f"import sys, pip; sys.exit(sys.version_info < {PYTHON_MIN})"
    try:
        done = subprocess.run([VENV_PYTHON, "-c", check], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return False
    return done.returncode == 0


def install(extra):
    """Run pip; print its progress at times, and its last lines if it fails."""
    command = [VENV_PYTHON, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    environ = dict(os.environ)
    if LATEST:
        command += ["--upgrade", "--upgrade-strategy=eager"]
    else:  # as variables, they hold for the packages that build chiplog, too; relative, for pip splits them at blanks
        environ["PIP_CONSTRAINT"] = " ".join([os.environ.get("PIP_CONSTRAINT", ""), CONSTRAINTS]).strip()
        environ["PIP_BUILD_CONSTRAINT"] = CONSTRAINTS  # of pip 25.3 and newer
    pip = subprocess.Popen(
        [*command, "--editable", f".[{extra}]"],
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # hides warnings about mirrors; errors are among the last lines
        encoding="utf-8",
        errors="replace",
    )
    lines = collections.deque(maxlen=LINES_SHOWN)

    def read():
        with pip.stdout:
            lines.extend(pip.stdout)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    began = time.monotonic()
    while True:
        try:
            code = pip.wait(STILL_INTERVAL_S)
            break
        except subprocess.TimeoutExpired:
            at = [line.strip() for line in list(lines) if line.strip() and not line.startswith("WARNING")]
            say(f"  {time.monotonic() - began:.0f} s: {at[-1][:100] if at else 'pip is starting'}")
    reader.join(1.0)
    if code:
        sys.stderr.writelines(lines)
        remedy = "" if LATEST else f"; LATEST=1 installs other versions than those of {CONSTRAINTS}"
        fail(f"pip could not install .[{extra}] (exit code {code}); its message is above{remedy}")


def native_files():
    """Return the paths of the compiled C part of the SDK: one or none."""
    return glob.glob(os.path.join(ROOT, os.path.dirname(NATIVE[0]), "_hot_path*.so"))


def build_native():
    """Compile the C part of the SDK; return True if that worked. Without a compiler the script prints a line."""
    built = subprocess.run([VENV_PYTHON, os.path.join(ROOT, NATIVE[1])], stdout=subprocess.PIPE, encoding="utf-8")
    is_built = built.returncode == 0 and built.stdout.startswith("built ")
    if not is_built:
        say(built.stdout.strip() or "building the C part of the SDK failed; its message is above")
    return is_built


def main():
    """Bring .venv up to date for one extra."""
    if len(sys.argv) != 2 or sys.argv[1] not in EXTRAS:
        fail("usage: bootstrap.py " + "|".join(EXTRAS))
    extra = sys.argv[1]
    stamp, found = wanted(extra), installed()
    is_installed = found[:2] == stamp[:2] and set(stamp[3:]) <= set(found[3:]) and os.path.exists(VENV_PYTHON)
    if is_installed and found[2] == stamp[2]:
        return
    if is_installed:  # only the C source has changed, or there was no compiler
        write([*found[:2], stamp[2] if build_native() else NOT_BUILT, *found[3:]])
        return
    check_python()
    if not venv_works():
        if os.path.lexists(VENV):
            say("removing .venv: it was made elsewhere, or its Python does not start")
            shutil.rmtree(VENV)
        say("making .venv with Python " + ".".join(map(str, sys.version_info[:3])))
        if subprocess.run([sys.executable, "-m", "venv", VENV], stdin=subprocess.DEVNULL).returncode:
            fail(f"{sys.executable} -m venv failed; its message is above")
    large = "; the first time this downloads PyTorch, which is large" if "torch" in EXTRAS[extra] else ""
    newest = " with the newest of all dependencies" if LATEST else ""
    say(f"installing chiplog[{extra}] into .venv{newest}{large}")
    for path in native_files():
        os.unlink(path)
    install(extra)  # compiles the C part, and hides why that failed
    is_built = native_files() or build_native()
    write([*stamp[:2], stamp[2] if is_built else NOT_BUILT, *stamp[3:]])


def write(stamp):
    """Note what is installed."""
    with open(STAMP, "w", encoding="utf-8") as file:
        file.write("\n".join(stamp) + "\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
