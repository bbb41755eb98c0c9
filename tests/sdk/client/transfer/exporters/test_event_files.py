"""Event files have each value under its tag; tests/integrations reads them with TensorBoard's own reader."""

import struct
import sys
from pathlib import Path

import pytest

from chiplog_client.transfer.exporters.conversion import convert_run
from chiplog_client.transfer.exporters.event_files import MissingLibraryError, require_tensorboard
from chiplog_schemas.model.events import EventKind
from tests.support.collector_log import Rank, whole
from tests.support.exported_run import IMAGE, make_place, served, sha256_of
from tests.support.index import Index
from tests.support.sample_log import place_of


def test_without_tensorboard_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ["tensorboard", *(name for name in sys.modules if name.startswith("tensorboard."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingLibraryError, match=r"written by TensorBoard, .*pip install 'chiplog\[tensorboard\]'"):
        require_tensorboard()


def test_a_label_is_a_directory_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    with served(make_place(tmp_path)) as client:
        done = convert_run(client, "whole", tmp_path / "out" / "whole", "tensorboard")
    assert done.written == {"points": 189, "texts": 3, "histograms": 3, "images": 3}
    assert done.left_out == {"images that the collector does not have": 3}
    assert sorted(path.name for path in done.path.iterdir()) == ["rank0", "rank1"]
    [file] = (done.path / "rank0").iterdir()
    assert "tfevents" in file.name and IMAGE in file.read_bytes()


def test_values_of_two_kinds_under_one_name_have_two_tags_and_labels_with_slashes_one_directory(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    index = Index(tmp_path)
    rank = Rank(0, "a/b", run_id="r", primary=True)
    rank.log(1, both=0.5)
    rank.say(EventKind.TEXT, 2, "both", "text")
    rank.log(3, both=1e300)
    rank.say(EventKind.HISTOGRAM, 4, "w", struct.pack("<2d", 0, 1), struct.pack("<d", 3))
    rank.say(EventKind.MEDIA, 4, "t", "table", sha256_of(b"t"), 5, "{}")
    index.take(whole(rank))
    with served(place_of(index)) as client:
        done = convert_run(client, "r", tmp_path / "out" / "r", "tensorboard")
    assert done.left_out == {"media of kind table": 1}
    reader = EventAccumulator(str(done.path / "a%2Fb")).Reload()
    assert [(event.step, event.value) for event in reader.Scalars("both")] == [(1, 0.5), (3, float("inf"))]
    assert sorted(reader.Tags()["tensors"]) == ["both/text", "w"]
