"""What the names of samples mean."""

from chiplog_client.reads.system.sample_names import is_counter, sample_name, sample_place


def test_a_name_has_a_title_and_a_quantity() -> None:
    assert sample_name("hw.power") == ("GPU power", "watts")
    assert sample_name("process.cpu.utilization").quantity == "cores"
    assert [is_counter(name) for name in ("hw.energy", "hw.power", "of.another.agent")] == [True, False, False]


def test_an_unknown_name_is_its_own_title_and_comes_last() -> None:
    assert sample_name("of.another.agent") == ("of.another.agent", "")
    names = ["of.another.agent", "system.disk.io.read", "hw.power"]
    assert sorted(names, key=sample_place) == ["hw.power", "system.disk.io.read", "of.another.agent"]
