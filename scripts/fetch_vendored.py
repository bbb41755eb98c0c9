"""Fetch the libraries of the page from the npm registry, and check them: `python scripts/fetch_vendored.py`.

The repository has them: chiplog runs and builds without this script. For a new version, change its entry here.
"""

import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PLACE = Path(__file__).parent.parent / "sdk" / "chiplog_page" / "static" / "vendor"
# Package and version; for each file its path in the package, its name here, and its SHA-256.
LIBRARIES = {
    "uplot@1.6.32": [  # draws 64 curves of 1,000 points in 69 ms; MIT
        (
            "package/dist/uPlot.iife.min.js",  # half the size of its modules, which are not minified
            "uPlot.iife.min.js",
            "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        ),
        (
            "package/dist/uPlot.min.css",
            "uPlot.min.css",
            "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
        ),
        ("package/LICENSE", "uPlot.LICENSE", "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd"),
    ],
}


def fetch(package: str, directory: str) -> bytes:
    """Return the archive of a package."""
    done = subprocess.run(
        ["npm", "pack", "--silent", package], cwd=directory, capture_output=True, text=True, check=True
    )
    return (Path(directory) / done.stdout.split()[-1]).read_bytes()


def main() -> int:
    """Write all files; return 1 if one is not the file that was reviewed."""
    for package, files in LIBRARIES.items():
        with (
            tempfile.TemporaryDirectory() as directory,
            tarfile.open(fileobj=io.BytesIO(fetch(package, directory))) as tar,
        ):
            for path, name, digest in files:
                member = tar.extractfile(path)
                assert member is not None
                content = member.read()
                if hashlib.sha256(content).hexdigest() != digest:
                    print(f"{package}: {path} has another content than the one that was reviewed", file=sys.stderr)
                    return 1
                (PLACE / name).write_bytes(content)
                print(f"{name}: {len(content)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
