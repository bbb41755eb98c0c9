"""Numbers of versions of artifacts in several logs: once given they stay, and all readers give the same."""

import random
from dataclasses import replace

from chiplog_collector.spanning.spread_versions import Digest, SeenVersion, numbered
from tests.support.safeguard import proves

NAME = ("project", "model")


def version(log: str, digest: str, cut_us: int | None, number: int = 0) -> SeenVersion:
    return SeenVersion(log, (*NAME, digest), cut_us, cut_us or 0, number)


def numbers(*seen: SeenVersion, **passed: int) -> dict[str, int | None]:
    return {digest: number for (_, _, digest), number in numbered(seen, passed).items()}


def test_versions_are_in_the_order_of_their_pieces_and_one_content_is_one_version() -> None:
    seen = [version("b", "x", 5), version("a", "y", 5), version("a", "x", 9, 1), version("b", "z", 7, 1)]
    assert numbers(*seen, a=20, b=20) == {"y": 0, "x": 1, "z": 2}
    assert numbers(*reversed(seen), a=20, b=20) == {"y": 0, "x": 1, "z": 2}
    assert numbered(seen, None) == dict.fromkeys((each.digest for each in seen), None)
    assert numbers(version("a", "x", None), version("b", "y", 3), a=9, b=9) == {"y": 0, "x": None}


def test_an_artifact_of_one_log_waits_for_the_others_too() -> None:
    seen = version("a", "x", 5), version("a", "y", 6, 1)
    assert numbers(*seen, a=0, b=6) == {"x": 0, "y": None}
    assert numbers(*seen, a=0) == {"x": 0, "y": 1}, "there is no other"


def test_a_version_waits_for_each_log_that_lives() -> None:
    seen = [version("a", "x", 5), version("b", "y", 8)]
    assert numbers(*seen, a=5, b=8, c=5) == {"x": None, "y": None}
    assert numbers(*seen, a=5, b=8, c=6) == {"x": 0, "y": None}
    assert numbers(*seen, a=9, b=8, c=9) == {"x": 0, "y": 1}
    assert numbers(*seen) == {"x": 0, "y": 1}, "all others are gone"


@proves(
    "version-waits-for-each-log", "the number of a version of an artifact in several logs never changes", value="True"
)
def test_in_random_histories_a_number_never_changes_and_readers_agree() -> None:
    for seed in range(300):
        chooser = random.Random(seed)
        logs = ["a", "b", "c"][: chooser.randint(2, 3)]
        # Pieces of each log by time; some wait at their collector while others are published.
        pieces = [(time_us, chooser.choice(logs)) for time_us in sorted(chooser.sample(range(1, 60), 20))]
        waiting = {log: [time_us for time_us, of in pieces if of == log] for log in logs}
        published: list[SeenVersion] = []
        passed = dict.fromkeys(logs, 0)
        known: dict[Digest, int] = {}
        while any(waiting.values()):
            log = chooser.choice([log for log in logs if waiting[log]])
            passed[log] = waiting[log].pop(0)
            published.append(version(log, chooser.choice("uvwxyz"), passed[log], len(published)))
            if not waiting[log]:
                passed[log] = 1000  # idle
            chooser.shuffle(published)
            found = numbered(published, passed)
            assert found == numbered([replace(each) for each in sorted(published, key=repr)], passed), seed
            for digest, number in known.items():
                assert found[digest] == number, seed
            known |= {digest: number for digest, number in found.items() if number is not None}
        assert sorted(known.values()) == list(range(len({each.digest for each in published}))), seed
