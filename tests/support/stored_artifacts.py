"""A database with versions of artifacts, written by hand, and their contents."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import duckdb

from chiplog.values.artifact_value import ManifestFile, manifest_digest
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
from chiplog_schemas.storage.content_files import content_path
from tests.support.hand_written import hand_written
from tests.support.run_builder import RunBuilder

FILES = {"weights.pt": b"first weights" * 100_000, "sub/config.json": b"{}"}
NEWER = {"weights.pt": b"other weights", "sub/config.json": b"{}"}


def file_of(path: str, data: bytes) -> ManifestFile:
    return ManifestFile(path, len(data), hashlib.sha256(data).digest())


def store(root: Path, data: bytes) -> Path:
    """Store a content as a collector does."""
    target = content_path(paths_for_root(root).files, hashlib.sha256(data).digest())
    ensure_private_dir(target.parent.parent)
    ensure_private_dir(target.parent)
    target.write_bytes(data)
    return target


def add_version(
    database: duckdb.DuckDBPyConnection,
    files: Iterable[ManifestFile],
    *,
    project: str = "team/gpt",
    name: str = "model",
    aliases: Iterable[str] = (),
) -> str:
    """Write a version of run r1 with these files; return its digest."""
    files = list(files)
    build = RunBuilder(database, "TIMESTAMP '2026-01-02'")
    digest = manifest_digest(files).hex()
    for file in files:
        sha256 = None if file.sha256 is None else file.sha256.hex()
        build.artifact_file(digest, file.path, file.size, sha256=sha256, reference=file.reference, omitted=file.omitted)
    named = {"project": project, "name": name, "digest": digest}
    sizes = {"n_files": len(files), "bytes": sum(file.size for file in files)}
    build.artifact(**named, **sizes, metadata='{"epoch": 3}', description="text")
    for alias in aliases:
        build.artifact_alias(**named, alias=alias)
    return digest


def fill(root: Path) -> None:
    """Write two versions of `model`, and one of `data` with references."""
    with hand_written(root) as database:
        build = RunBuilder(database, "TIMESTAMP '2026-01-02'")
        build.run("r1", primary_label="a")
        build.label("r1", "a", is_primary=True)
        add_version(database, [file_of(*item) for item in FILES.items()], aliases=["best"])
        add_version(database, [file_of(*item) for item in NEWER.items()])
        local = root / "referenced.txt"
        local.write_text("referenced")
        references = [
            ManifestFile("here", 10, hashlib.sha256(b"referenced").digest(), local.as_uri()),
            ManifestFile("there", 0, None, "s3://bucket/key"),
        ]
        add_version(database, references, name="data")
        add_version(database, [file_of("../../escape", b"out")], name="evil")
        add_version(database, [file_of("gone", b"not here")], name="gone")
        limit = "it has 13 bytes, the limit is 4, set by CHIPLOG_FILE_BYTES_MAX; it is not saved"
        large = replace(file_of("large.pt", NEWER["weights.pt"] * 2), omitted=limit)
        add_version(database, [large, file_of("sub/config.json", b"{}")], name="partial")
        for data in {*FILES.values(), *NEWER.values(), b"out"}:
            store(root, data)
