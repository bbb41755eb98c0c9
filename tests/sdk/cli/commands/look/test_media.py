"""`chiplog media`: keys, pictures of histograms, texts, rows of media and tables, and their files."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chiplog_cli.commands.look.media import media
from tests.support.hand_written import hand_written, kept_open
from tests.support.logged_media import N_ROWS, digest_of, fill_logged_media, store_logged_media
from tests.support.media_run import MARKUP, SPIKE, fill_media_run
from tests.support.run_builder import RunBuilder
from tests.support.safeguard import proves

ESCAPES = "../../escape"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("media")
    with hand_written(root) as database:
        fill_media_run(database)
        fill_logged_media(database)
        build = RunBuilder(database)
        build.run("hostile")
        build.ranks("hostile")
        first, sha256 = {"step": 0, "where": "run_id = 'hostile'"}, digest_of("scene")
        build.media(ESCAPES, "image", sha256, 10, {"format": "png"}, seq=0, **first)
        for seq, kind in enumerate(("image", "figure"), 1):
            build.media("both", kind, sha256, 10, {"format": "png"}, seq=seq, **first)
        build.store(sha256, 10)
    store_logged_media(root)
    with kept_open(root):
        yield root


def call(root: Path, *arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(media, [*arguments, "--dir", str(root)])


def test_without_a_key_all_keys_are_listed_with_their_steps(root: Path) -> None:
    rows = [line.split() for line in call(root, "media").stdout.splitlines()[2:]]
    assert rows == [
        ["grads", "histogram", "50", "0", "490"],
        ["weights", "histogram", "1,000", "0", "499"],
        ["sample", "text", "10", "0", "400"],
    ]
    rows = [line.split() for line in call(root, "logged", "--kind", "audio").stdout.splitlines()[2:]]
    assert rows == [["tone", "audio", "3", "0", "200"]]
    assert call(root, "plain").stdout == "no histogram, text or media\n"
    assert set(json.loads(call(root, "media", "--format", "json").stdout)) == {"histograms", "texts", "media"}


def test_histograms_are_a_picture_over_the_steps_and_quantiles(root: Path) -> None:
    lines = call(root, "media", "weights").stdout.splitlines()
    assert lines[0] == "weights, steps 0 to 499, up to 8 of them in a column"
    assert lines[1].split() == ["10"], "the largest value, of a single step"
    top = lines[3].partition("│")[2]
    assert len(top) == SPIKE // 8 + 1 and top.strip() == top[-1], "values in a single step stay visible"
    first, last = (line.split() for line in lines[-2:])
    assert (first, last[:3]) == (["0", "32", "-1", "-0.9", "0", "0.9", "1"], ["499", "32", "-5.99"])


def test_a_step_has_its_bins(root: Path) -> None:
    lines = call(root, "media", "grads", "--step", "105").stdout.splitlines()
    assert lines[0] == "grads, step 100", "the last one until then"
    bins = [line.split()[:3] for line in lines[3:6]]
    assert bins == [["0", "0.1", "990"], ["0.1", "1", "10"], ["1", "10", "0"]]
    assert call(root, "media", "grads", "--step", "-5").stdout.splitlines()[0] == "grads, step 0"
    found = json.loads(call(root, "media", "grads", "--step", "105", "--format", "json").stdout)["logged"]
    assert [(row["kind"], row["counts"], row["quantiles"][0]["n"]) for row in found] == [
        ("histogram", [990, 10, 0], 1000)
    ]
    none = call(root, "media", "grads", "--label", "rank1")
    assert none.stdout == "grads: no histogram of these labels with values\n"


def test_the_newest_texts_come_last_and_are_text(root: Path) -> None:
    lines = call(root, "media", "sample", "--limit", "2").stdout.splitlines()
    assert lines[0] == "sample, step 400, rank1"
    assert lines[1] == f"{MARKUP} at 400"
    assert lines[3] == "sample, step 400, rank0"
    assert lines[4] == "To be, or not to be: 400" and lines[5].startswith("word word"), "its lines are kept"
    assert lines[-1] == "the newest 2 texts; --limit shows more"
    found = call(root, "media", "sample", "--search", "TO BE: 3").stdout.splitlines()
    assert found[0] == "sample, step 300, rank0"
    assert call(root, "media", "sample", "--search", "zebra").stdout == "sample: no text with 'zebra'\n"
    chosen = call(root, "media", "sample", "--step", "250", "--label", "rank1").stdout
    assert chosen == f"sample, step 200, rank1\n{MARKUP} at 200\n"


def test_media_have_a_row_each_and_tables_their_rows(root: Path) -> None:
    lines = call(root, "logged", "digits", "--limit", "6").stdout.splitlines()
    assert lines[0] == "digits, image"
    assert lines[1].split() == ["step", "label", "item", "type", "what", "caption", "bytes"]
    assert [line.split()[:3] for line in lines[3:9]] == [
        ["100", "rank0", "0"],
        *(["200", "rank0", str(n)] for n in range(5)),
    ]
    assert "60 x 40" in lines[3] and "digit 0" in lines[3]
    assert lines[9] == "the newest 6; --limit shows more"
    assert "has not arrived" in call(root, "logged", "lost").stdout
    table = call(root, "logged", "predictions").stdout
    assert "1,500 rows, 4 columns" in table and "predictions, step 200, rank0" in table
    assert f"{N_ROWS - 20:,} more rows; --save DIR writes the table as Parquet" in table
    assert "1 s" in call(root, "logged", "tone").stdout


def test_files_are_saved_under_key_step_and_label(root: Path, tmp_path: Path) -> None:
    done = call(root, "logged", "digits", "tone", "--save", str(tmp_path))
    assert done.exit_code == 0 and done.stderr.startswith("18 files, ")
    names = {path.name for path in tmp_path.iterdir()}
    assert len(names) == 18 and {"digits_100_rank0_4.png", "tone_200_rank0.wav"} <= names
    data = (tmp_path / "tone_200_rank0.wav").read_bytes()
    assert hashlib.sha256(data).hexdigest() == digest_of("tone")
    again = call(root, "logged", "tone", "--save", str(tmp_path))
    assert again.exit_code == 2 and "tone_200_rank0.wav exists" in again.stderr
    one = call(root, "logged", "--step", "0", "--kind", "image", "--label", "rank1", "--save", str(tmp_path / "new"))
    assert "rank1: " not in one.stderr and [path.name for path in (tmp_path / "new").iterdir()] == ["scene_0_rank1.png"]


@proves(
    "saved-media-stay-below-target",
    "media are written below the chosen directory, whatever their key is",
    condition=False,
)
def test_a_key_never_leaves_the_chosen_directory(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    done = call(root, "hostile", ESCAPES, "--save", str(target))
    assert done.exit_code == 1 and "cannot be written: it must be relative" in done.stderr
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["media", "weigths"], "did you mean 'weights'?"),
        (["logged", "scene", "--kind", "imgae"], "did you mean 'image'?"),
        (["media", "--label", "rank9"], "label 'rank9'"),
        (["plain", "--save", "x"], "run 'plain' has no media of this choice; chiplog media plain lists all"),
        (["hostile", "both", "--save", "x"], "two media have the file name 'both_0_rank0.png'; choose one by --kind"),
    ],
)
def test_bad_input_is_one_line(root: Path, arguments: list[str], message: str) -> None:
    done = call(root, *arguments)
    assert done.exit_code == 2 and message in done.stderr
