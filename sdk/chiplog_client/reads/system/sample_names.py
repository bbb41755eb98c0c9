"""Names of samples as people read them: a title, and what the values count; in the order of the page."""

from typing import NamedTuple

from chiplog_schemas.model.system_metrics import SYSTEM_METRICS

_PLACES = {name: place for place, name in enumerate(SYSTEM_METRICS)}


class SampleName(NamedTuple):
    """What a name of a sample means.

    Attributes:
        title: A few plain words.
        quantity: What the values count, which decides about units: share, cores, bytes, hertz, watts, celsius, joules,
            seconds or "" for plain numbers.
    """

    title: str
    quantity: str = ""


def sample_name(name: str) -> SampleName:
    """Return what a name means; a name of another agent is its own title."""
    metric = SYSTEM_METRICS.get(name)
    return SampleName(name) if metric is None else SampleName(metric.title, metric.quantity)


def sample_place(name: str) -> tuple[int, str]:
    """Return a key that sorts names in the order of the page, those of other agents last."""
    return _PLACES.get(name, len(_PLACES)), name


def is_counter(name: str) -> bool:
    """Return True if the values count up, so that their growth is what people look at."""
    metric = SYSTEM_METRICS.get(name)
    return metric is not None and metric.is_counter
