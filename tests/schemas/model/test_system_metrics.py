"""The table of the metrics that the agent samples."""

import re

from chiplog_schemas.model.system_metrics import (
    GPU_METRICS,
    HOST_METRICS,
    PIPELINE_METRICS,
    RANK_METRICS,
    SYSTEM_METRICS,
)

UNIT = re.compile(r"1|By|Hz|W|J|s|Cel|\{[a-z]+\}")


def test_names_titles_units_and_sources_are_whole() -> None:
    parts = (GPU_METRICS, HOST_METRICS, RANK_METRICS, PIPELINE_METRICS)
    assert len(SYSTEM_METRICS) == sum(map(len, parts)), "a name is there twice"
    for name, metric in SYSTEM_METRICS.items():
        assert name == metric.name and re.fullmatch(r"(hw|system|process|cgroup|rdma|chiplog)(\.[a-z0-9_]+)+", name)
        assert UNIT.fullmatch(metric.unit), name
        assert metric.title and metric.source and metric.period_s >= 0, name
    titles = [metric.title for metric in SYSTEM_METRICS.values()]
    assert len(set(titles)) == len(titles)


def test_exposed_names_have_units_and_parts_of_a_family_agree() -> None:
    exposed = {name: SYSTEM_METRICS[name].exposed for name in SYSTEM_METRICS}
    assert exposed["hw.energy"] == ("hw_energy_joules", {})
    assert exposed["chiplog.agent.spool"] == ("chiplog_spool_bytes", {})
    assert exposed["chiplog.agent.events.lost"] == ("chiplog_events", {"result": "lost"})
    families: dict[str, set[tuple[str, bool, str]]] = {}
    for name, (family, labels) in exposed.items():
        metric = SYSTEM_METRICS[name]
        families.setdefault(family, set()).add((metric.unit, metric.is_counter, "".join(labels)))
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family)
    assert all(len(of) == 1 for of in families.values())
    # The agent and the collector may share a family: they are two targets of a monitoring system.
    parts = {(name.split(".")[1], family, *labels.items()) for name, (family, labels) in exposed.items()}
    assert len(parts) == len(exposed)
