"""What an imported event says: the columns of the index that do not depend on the collector, and an identity."""

from dataclasses import fields
from typing import Any

import pytest

from chiplog_collector.index.apply.registry import RUN_COLUMNS
from chiplog_collector.index.apply.state import Producer
from chiplog_schemas.model.import_event import PRODUCER_FIELDS, RUN_FIELDS, identity_of_import

OF_THE_COLLECTOR = {"producer", "uuid", "run", "attempt", "launch_order", "nodes", "owner", "sender"}


def test_every_column_of_a_producer_is_imported_or_belongs_to_the_collector() -> None:
    assert {field.name for field in fields(Producer)} - OF_THE_COLLECTOR == set(PRODUCER_FIELDS)
    assert set(RUN_COLUMNS) < set(RUN_FIELDS)


@pytest.mark.parametrize(
    ("body", "identity"),
    [
        (None, {}),
        ({"producer": 5}, {}),
        ({"seqs": [1, 2]}, {}),
        ({"producer": {"node": "a"}}, {"node": "a", "run_id": None, "label": None}),
        (
            {"producer": {"node": "a", "agent_node": "b", "label": "l"}, "run": {"run_id": "r"}},
            {"node": "b", "run_id": "r", "label": "l"},
        ),
        ({"producer": {"agent_node": 7}, "run": []}, {"node": 7, "run_id": None, "label": None}),
    ],
)
def test_the_node_that_a_key_must_cover_is_the_agents(body: Any, identity: dict[str, Any]) -> None:
    assert identity_of_import(body) == identity
