"""Events and blocks of events."""
