"""Reading versions: by alias, number or digest; files are verified; a wait has an end, and an error one line."""

import threading
from pathlib import Path

import duckdb
import pytest

from chiplog.artifacts import reads
from chiplog.values.artifact_value import ArtifactError, ArtifactPlace, ManifestFile
from chiplog_schemas.paths import paths_for_root
from tests.support.safeguard import proves
from tests.support.stored_artifacts import FILES, NEWER, fill, store
from tests.support.waiting import WAIT_S


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reads, "_SETTLE_S", 0.0)
    monkeypatch.setattr(reads, "_PAUSE_S", 0.01)
    fill(tmp_path / "root")
    return tmp_path / "root"


def place_of(root: Path) -> ArtifactPlace:
    return ArtifactPlace("team/gpt", "online", None, root, 1.0, lambda *change: None)


def find(root: Path, wanted: str, name: str = "model") -> reads.Version:
    return reads.find_by_name(place_of(root), "team/gpt", name, wanted, WAIT_S)


def written(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


@pytest.mark.parametrize(("wanted", "files"), [("best", FILES), ("v0", FILES), ("latest", NEWER), ("v1", NEWER)])
def test_a_version_is_found_and_its_files_come_back(
    root: Path, tmp_path: Path, wanted: str, files: dict[str, bytes]
) -> None:
    version = find(root, wanted)
    assert (version.type, version.metadata, version.description) == ("model", {"epoch": 3}, "text")
    assert str(version) == f"team/gpt/model:v{version.version}"
    reads.download(place_of(root), version, tmp_path / "out", 0.0)
    assert written(tmp_path / "out") == files
    assert reads.read(place_of(root), version, "weights.pt", 0.0) == files["weights.pt"]
    found = reads.find_by_digest(place_of(root), "team/gpt", "model", bytes.fromhex(version.digest), WAIT_S)
    assert found == version


@pytest.mark.parametrize(
    ("name", "wanted", "message"),
    [
        ("model", "worst", "artifact 'model' of project 'team/gpt' has no version 'worst'; it has v1 latest, v0 best"),
        ("model", "v9", "has no version v9"),
        ("modell", "latest", "artifact 'modell' of project 'team/gpt' is unknown"),
    ],
)
def test_what_is_unknown_is_one_error_that_names_what_is_known(
    root: Path, name: str, wanted: str, message: str
) -> None:
    with pytest.raises(ArtifactError) as error:
        find(root, wanted, name)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_version_that_was_removed_is_unknown_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number is never given again, so that one below the newest cannot be on its way."""
    with duckdb.connect(str(paths_for_root(root).index)) as database:
        database.execute("UPDATE base.artifact_versions SET version = 3 WHERE name = 'model' AND version = 1")
    monkeypatch.setattr(reads, "_SETTLE_S", 1e9)
    monkeypatch.setattr(reads.is_exiting, "wait", lambda pause_s: pytest.fail("it must not wait"))
    with pytest.raises(ArtifactError, match="has no version v1; it has v3 latest, v0 best"):
        find(root, "v1")


@proves("version-without-number-waits", "a version without a number is waited for, and named", condition=False)
def test_a_version_that_has_no_number_yet_is_one_error_in_the_end(root: Path) -> None:
    """Several collectors of a store number the versions of an artifact once none can log one before."""
    with duckdb.connect(str(paths_for_root(root).index)) as database:
        database.execute("UPDATE base.artifact_versions SET version = NULL WHERE name = 'model' AND version = 1")
    with pytest.raises(ArtifactError, match="a version of artifact 'model' of project 'team/gpt' has no number yet"):
        reads.find_by_name(place_of(root), "team/gpt", "model", "latest", 0.1)
    assert find(root, "v0").version == 0
    with pytest.raises(ArtifactError, match="has no version v7; it has v0 best"):
        find(root, "v7")


def test_a_file_of_this_machine_is_copied_and_other_references_stay(root: Path, tmp_path: Path) -> None:
    version = find(root, "latest", "data")
    reads.download(place_of(root), version, tmp_path / "out", 0.0)
    assert written(tmp_path / "out") == {"here": b"referenced"}
    (root / "referenced.txt").write_text("changed it")
    with pytest.raises(ArtifactError, match="has changed since artifact team/gpt/data:v0 was logged"):
        reads.download(place_of(root), version, tmp_path / "again", 0.0)
    (root / "referenced.txt").unlink()
    with pytest.raises(ArtifactError, match="cannot be read: No such file"):
        reads.download(place_of(root), version, tmp_path / "again", 0.0)
    assert written(tmp_path / "again") == {}


def test_a_content_that_is_missing_or_damaged_is_an_error_and_nothing_is_left(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="file 'gone' of artifact team/gpt/gone:v0 cannot be read"):
        reads.download(place_of(root), find(root, "latest", "gone"), tmp_path / "out", 0.1)
    store(root, NEWER["weights.pt"]).write_bytes(b"other weighty")
    with pytest.raises(ArtifactError, match="damaged at the collector"):
        reads.download(place_of(root), find(root, "latest"), tmp_path / "out", 0.0)
    assert set(written(tmp_path / "out")) <= {"sub/config.json"}


def test_a_file_without_bytes_is_named_with_its_reason_and_the_others_are_written(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads.is_exiting, "wait", lambda pause_s: pytest.fail("it must not wait"))
    said: list[str] = []
    monkeypatch.setattr(reads, "report_once", lambda diagnostic: said.append(diagnostic.message))
    version = find(root, "latest", "partial")
    reads.download(place_of(root), version, tmp_path / "out", WAIT_S)
    assert written(tmp_path / "out") == {"sub/config.json": b"{}"}
    line = "artifact team/gpt/partial:v0 has no bytes of 'large.pt': it has 13 bytes, the limit is 4"
    assert [text.partition(",")[0] for text in said] == [line.partition(",")[0]] and "\n" not in said[0]
    with pytest.raises(ArtifactError, match=line):
        reads.read(place_of(root), version, "large.pt", WAIT_S)


def test_a_line_about_files_without_bytes_names_a_few(root: Path) -> None:
    version = find(root, "latest", "partial")
    text = reads.omission_text(version, [ManifestFile(f"{number}", 1, None, omitted="full") for number in range(7)])
    assert text == "artifact team/gpt/partial:v0 has no bytes of '0', '1', '2', '3', '4' and 2 more: full"


@proves(
    "artifact-stays-below-root",
    "a file of an artifact never leads out of the directory that was named",
    condition=False,
)
def test_a_path_that_leads_elsewhere_is_not_written(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="it must be relative"):
        reads.download(place_of(root), find(root, "latest", "evil"), tmp_path / "a" / "b", 0.0)
    assert not (tmp_path / "escape").exists()


@proves("artifact-manifest-verified", "a manifest that is not what was logged is refused", condition=False)
def test_a_manifest_that_lacks_an_entry_is_refused(root: Path) -> None:
    with duckdb.connect(str(paths_for_root(root).index)) as database:
        database.execute("DELETE FROM base.artifact_files WHERE path = 'sub/config.json'")
    with pytest.raises(ArtifactError, match="1 of its 2 entries are there"):
        reads.find_by_name(place_of(root), "team/gpt", "model", "latest", 0.5)


@pytest.mark.parametrize("url", [None, "tcp://127.0.0.1:1", "nonsense"])
def test_a_collector_that_does_not_answer_is_one_error(tmp_path: Path, url: str | None) -> None:
    place = ArtifactPlace("p", "online", url, tmp_path / "nothing", 0.1, lambda *change: None)
    with pytest.raises(ArtifactError, match=r"artifacts cannot be read within 0.1 s: ") as error:
        reads.find_by_name(place, "p", "model", "latest", 0.1)
    assert "\n" not in str(error.value)


def test_a_read_ends_in_its_time_although_the_collector_is_stopped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "_LATE_S", 0.0)
    is_asked, is_over = threading.Event(), threading.Event()

    def wait(*given: object, **named: object) -> None:
        is_asked.set()
        is_over.wait()

    monkeypatch.setattr(reads.chiplog, "connect", wait)
    with pytest.raises(ArtifactError, match=r"within 0.2 s: the collector does not answer; see chiplog status"):
        reads.find_by_name(place_of(root), "team/gpt", "model", "latest", 0.2)
    assert is_asked.is_set()
    is_over.set()
