"""One hypothesis profile for all of tests/schemas: bounded in time, and each failure prints how to repeat it."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "schemas",
    max_examples=100,
    deadline=None,  # timings are no assertions
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("schemas")
