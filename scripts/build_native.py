"""Build the C part of the SDK. A build hook of hatchling for wheels and editable installs, and a program.

`python scripts/build_native.py` builds it in place. Without a C compiler or Python.h it prints one line and succeeds:
chiplog then uses the Python functions that do the same. CHIPLOG_NATIVE=require makes that an error, for wheels.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join("sdk", "chiplog", "native")
SOURCE = os.path.join(FOLDER, "hot_path.c")
LIMITED_API = "0x030B0000"  # of Python 3.11, the oldest one that chiplog supports
IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))  # it has no stable ABI
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") if IS_FREE_THREADED else ".abi3.so"
TARGET = os.path.join(FOLDER, "_hot_path" + SUFFIX)


def command(target):
    """Return the compiler's command line: the variable CC's compiler, or this Python's, or cc."""
    linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")
    options = [word for word in linker[1:] if word.startswith("-")]
    compiler = shlex.split(os.environ.get("CC") or "") or [linker[0] if shutil.which(linker[0]) else "cc"]
    macros = [] if IS_FREE_THREADED else [f"-DPy_LIMITED_API={LIMITED_API}"]
    flags = shlex.split(os.environ.get("CFLAGS", ""))
    with open(os.path.join(ROOT, SOURCE), "rb") as source:
        macros.append(f"-DSOURCE_CRC={zlib.crc32(source.read())}ul")  # loader.py compares it
    include = f"-I{sysconfig.get_paths()['include']}"
    return [*compiler, *options, "-fPIC", "-O2", *macros, include, *flags, SOURCE, "-o", target]


def build():
    """Compile the extension in place. Return an empty string, or a line with the reason why there is none."""
    reason = compile_source()
    line = f"the C part of the SDK was not built: {reason}"
    if reason and os.environ.get("CHIPLOG_NATIVE") == "require":
        sys.exit(f"chiplog: {line}")
    return f"{line}; Python does the same" if reason else ""


def compile_source():
    """Compile the extension. Return an empty string, or the reason why that was not possible."""
    if os.name != "posix":
        return f"not built on {os.name}"
    target = os.path.join(ROOT, TARGET)
    made = f"{target}.{os.getpid()}"  # renamed to it: a process that has mapped the old file keeps it
    try:
        done = subprocess.run(command(made), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode == 0:
            os.chmod(made, 0o755)
            os.rename(made, target)
            return ""
        lines = [line for line in done.stdout.splitlines() if "error" in line] or ["the compiler failed"]
        reason = "no Python.h" if "Python.h" in done.stdout else lines[0].strip()
    except OSError as error:
        reason = f"no C compiler ({error.filename})"
    finally:
        if os.path.exists(made):
            os.unlink(made)
    if os.path.exists(target):
        os.unlink(target)  # of an older source
    return reason


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # as a program
    pass
else:

    class NativeBuildHook(BuildHookInterface):
        """Build the extension, and make the wheel one of this platform."""

        def initialize(self, version, build_data):
            """Called by hatchling before it builds a wheel. version: standard or editable."""
            if line := build():
                self.app.display_warning(line)
            elif version != "editable":
                python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
                abi = f"{python}-{python}t" if IS_FREE_THREADED else "cp311-abi3"
                build_data["pure_python"] = False
                build_data["tag"] = f"{abi}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
                build_data["artifacts"].append(f"/{TARGET}")


if __name__ == "__main__":
    print(build() or f"built {TARGET}")
