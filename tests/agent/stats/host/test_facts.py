"""What the host is, beside the kernel's own files."""

import os
import platform
from pathlib import Path
from typing import Any

from chiplog_agent.stats.host.facts import HostFactsSource, host_facts, numa_node


def test_facts_are_those_of_the_kernel() -> None:
    facts = host_facts()
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    assert facts["memory_bytes"] == int(total.split()[1]) * 1024
    assert facts["kernel"] == platform.release() and facts["cpu"]["threads"] == os.cpu_count()
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    assert facts["cpu"].get("model") == (models[0].split(":", 1)[1].strip() if models else None)


def test_an_interface_has_its_speed_where_it_has_a_link(tmp_path: Path) -> None:
    for name, speed in (("up", "100000\n"), ("down", "-1\n"), ("odd", "fast\n")):
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "speed").write_text(speed)
    (tmp_path / "up/device/numa_node").write_text("1\n")
    assert host_facts(str(tmp_path))["nics"] == [
        {"name": "down"},
        {"name": "odd"},
        {"name": "up", "bits_per_s": 100_000_000_000, "numa_node": 1},
    ]


def test_what_cannot_be_read_is_absent(tmp_path: Path) -> None:
    facts = host_facts(str(tmp_path / "none"), str(tmp_path / "none"))
    assert facts["nics"] == [] and "model" not in facts["cpu"]
    (tmp_path / "numa_node").write_text("-1\n")
    assert numa_node(str(tmp_path)) is None


def test_the_source_posts_and_has_no_metrics() -> None:
    posted: list[Any] = []
    assert HostFactsSource(posted.append).read() == []
    [(kind, facts)] = posted
    assert kind == "facts" and facts["kernel"] == platform.release()
