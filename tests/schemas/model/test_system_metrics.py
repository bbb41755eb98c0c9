"""The table of the metrics that the agent samples."""

import re

from chiplog_schemas.model.system_metrics import GPU_METRICS, HOST_METRICS, RANK_METRICS, SYSTEM_METRICS

UNIT = re.compile(r"1|By|Hz|W|J|s|Cel|\{[a-z]+\}")


def test_names_titles_units_and_sources_are_whole() -> None:
    assert len(SYSTEM_METRICS) == len(GPU_METRICS) + len(HOST_METRICS) + len(RANK_METRICS), "a name is there twice"
    for name, metric in SYSTEM_METRICS.items():
        assert name == metric.name and re.fullmatch(r"(hw|system|process|cgroup|rdma|chiplog)(\.[a-z0-9_]+)+", name)
        assert UNIT.fullmatch(metric.unit), name
        assert metric.title and metric.source and metric.period_s >= 0, name
    titles = [metric.title for metric in SYSTEM_METRICS.values()]
    assert len(set(titles)) == len(titles)
