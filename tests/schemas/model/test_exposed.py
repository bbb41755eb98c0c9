"""What a daemon shows to a monitoring system."""

from chiplog_schemas.model.exposed import Exposed, Health


def test_values_and_reasons_are_asked_for_when_they_are_needed() -> None:
    exposed = Exposed({"node": "a"}, ("hw.power",), (250.0,))
    health = Health(lambda: [exposed], lambda: "", lambda: "the collector does not answer")
    assert list(health.collect()) == [exposed]
    assert (health.is_alive(), health.is_ready()) == ("", "the collector does not answer")
