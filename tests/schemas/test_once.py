"""A message is written once per key, or again after its key was quiet; the number of keys has a bound."""

from chiplog_schemas.once import OnceLogger


def test_each_key_is_written_once_with_its_first_message() -> None:
    written: list[tuple[str, str]] = []
    once = OnceLogger(lambda *message: written.append(message), keys_max=10)
    assert once.log("disk", "%s failed", "first")
    assert not once.log("disk", "%s failed", "second")
    assert once.log(("net", 1), "%s failed", "third")
    assert written == [("%s failed", "first"), ("%s failed", "third")]


def test_the_key_is_the_message_unless_there_is_another() -> None:
    written: list[str] = []
    once = OnceLogger(written.append, keys_max=10)
    assert [once.log("disk full"), once.log("disk full")] == [True, False]
    assert written == ["disk full"]


def test_a_key_is_written_again_after_it_was_quiet() -> None:
    written: list[float] = []
    once = OnceLogger(written.append, keys_max=10, quiet_s=60.0)
    for now in (100.0, 130.0, 180.0, 239.0, 299.0):  # only the last one after a minute without any
        once.log("disk", now, now=now)
    assert written == [100.0, 299.0]


def test_keys_that_differ_each_time_are_bounded() -> None:
    written: list[int] = []
    once = OnceLogger(written.append, keys_max=3)
    assert [once.log(n, n) for n in range(5)] == [True, True, True, False, False]
    assert not once.log(0, 0)
    assert written == [0, 1, 2]


def test_a_message_that_cannot_be_written_is_not_tried_again() -> None:
    def refuse(message: str) -> None:
        raise OSError(message)

    once = OnceLogger(refuse, keys_max=10)
    try:
        once.log("disk", "full")
    except OSError:
        pass
    assert not once.log("disk", "full")
