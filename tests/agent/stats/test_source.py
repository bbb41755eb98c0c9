"""Every source of the agent has the interface, and gives only metrics of the table."""

from chiplog_agent.stats.host.sources import host_sources
from chiplog_agent.stats.rank.process_tree import ProcessStats


def test_every_source_says_how_often_it_reads_and_how_long_that_may_take() -> None:
    sources = [*host_sources(), ProcessStats()]
    assert all(source.period_s >= 0 and (source.deadline_s is None or source.deadline_s > 0) for source in sources)
    titles = [source.title for source in sources]
    assert all(titles) and len(set(titles)) == len(titles)
