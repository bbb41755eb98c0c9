"""Keys are remembered up to a limit, and those above it are counted."""

from chiplog.recording.log.logged_keys import LoggedKeys


def test_a_known_key_passes_the_limit_and_a_new_one_does_not() -> None:
    reported: list[tuple[str, int]] = []
    keys = LoggedKeys(2, lambda key, limit: reported.append((key, limit)))
    assert [keys.register(key) for key in ("a", "b", "c", "a")] == [True, True, False, True]
    assert keys.exceeds_limit("d") and not keys.exceeds_limit("b")
    assert (len(keys), reported) == (2, [("c", 2), ("d", 2)])
