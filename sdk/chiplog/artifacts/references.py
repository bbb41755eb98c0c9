"""What a reference is: its entries, with sizes and digests if its files are on this machine."""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from chiplog.values.artifact_value import ArtifactEntry
from chiplog_schemas.interrupts import unless_interrupt


def local_path(reference: str) -> str | None:
    """Return the path of a reference to a file of this machine; None for any other."""
    parts = urlsplit(reference)
    return unquote(parts.path) if parts.scheme == "file" else None


def entries_of_reference(
    uri: str, name: str, checksum: bool, report_fault: Callable[[str], None]
) -> Iterator[ArtifactEntry]:
    """Yield the entries of a URI: one, or one for each file of a directory of this machine."""
    path = local_path(uri)
    if path is None:
        yield ArtifactEntry(name, reference=uri)
    elif os.path.isdir(path):
        for parent, directories, files in os.walk(path):
            directories.sort()
            for file in sorted(files):
                source = os.path.join(parent, file)
                inside = os.path.relpath(source, path)
                yield _entry(Path(source).as_uri(), f"{name}/{inside}", source, checksum, report_fault)
    else:
        yield _entry(uri, name, path, checksum, report_fault)


def _entry(uri: str, name: str, path: str, checksum: bool, report_fault: Callable[[str], None]) -> ArtifactEntry:
    size, digest = 0, None
    try:
        if checksum:
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").digest()
                size = file.tell()
        else:
            size = os.stat(path).st_size
    except unless_interrupt(OSError) as error:
        report_fault(f"has the reference {uri:.200} that cannot be read: {error.strerror}; it has no checksum")
    return ArtifactEntry(name, reference=uri, size=size, sha256=digest)
