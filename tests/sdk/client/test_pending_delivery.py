"""What a client waits for when it connects: from directories in which nothing runs."""

import duckdb
import pytest

from chiplog_client import pending_delivery
from chiplog_client.client import connect
from chiplog_client.pending_delivery import PendingDelivery
from chiplog_schemas.paths import Paths, ensure_private_dir

PRODUCER = bytes(range(16))

pytestmark = pytest.mark.usefixtures("no_environment")


def end_producer(where: Paths, producer: bytes) -> None:
    with duckdb.connect(str(where.index)) as database:
        database.execute("UPDATE base.producers SET uuid = $1, state = 'finished'", [producer])


def test_a_directory_in_which_nothing_waits_starts_nothing_and_asks_nothing(where, capsys):
    def refuse(*given: object) -> None:
        raise AssertionError(given)

    delivery = PendingDelivery(where, refuse)
    assert delivery.start_daemons() == []
    delivery.wait_for_spool()
    delivery.wait_for_ends([])
    delivery.wait_for_finished()
    assert capsys.readouterr().err == ""
    assert not (where.agent / "lock").exists()


def test_ends_are_awaited_until_the_database_has_them(where, monkeypatch):
    monkeypatch.setattr(pending_delivery, "POLL_AGAIN_S", 0.01)
    with connect(dir=where.root, start=False) as client:
        asked = []

        def sql(query, params):
            asked.append(params["ended"])
            found = client.sql(query, params)
            if len(asked) == 1:
                end_producer(where, PRODUCER)
            return found

        PendingDelivery(where, sql).wait_for_ends([PRODUCER])
    assert asked == [[PRODUCER.hex().upper()]] * 2


def test_a_journal_that_stays_is_not_awaited_once_the_delivery_stalls(where, monkeypatch):
    monkeypatch.setattr(pending_delivery, "STALLED_S", 0.0)
    ensure_private_dir(where.journals / PRODUCER.hex())
    with connect(dir=where.root, start=False) as client:
        asked = []

        def sql(query, params):
            asked.append(params["ended"])
            return client.sql(query, params)

        PendingDelivery(where, sql).wait_for_ends([PRODUCER])
    assert asked == [[]]
