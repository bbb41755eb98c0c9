"""The phases of a run and the labels that have them."""

from pathlib import Path

from chiplog_client.reads.run_phases import read_labels, read_phases
from tests.support.hand_written import filled
from tests.support.slow_ranks import fill_rank_outside


def test_phases_and_labels_are_in_the_order_of_the_page(tmp_path: Path) -> None:
    with filled(tmp_path, fill_rank_outside) as client:
        phases = read_phases(client, "apart")
        assert [row["name"] for row in phases] == ["step", "data", "forward", "backward", "checkpoint"]
        assert [row["may_wait"] for row in phases] == [False, False, False, True, False]
        assert (phases[0]["first_step"], phases[-1]["first_step"], phases[-1]["last_step"]) == (0, 80, 80)
        assert list(read_labels(client, "apart").values()) == ["rank0", "rank1", "rank2", "rank3"]
        assert list(read_labels(client, "apart", phases[-1]["id"]).values()) == ["rank0"]
        assert (read_phases(client, "alone"), read_labels(client, "alone")) == ([], {})
