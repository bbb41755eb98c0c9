"""What a key permits: the nodes that its names and patterns cover, and no other."""

import pytest

from chiplog_schemas.security.permissions import Permission, matches_node


@pytest.mark.parametrize(
    ("nodes", "node", "covers"),
    [
        (("gpu-1",), "gpu-1", True),
        (("gpu-1",), "gpu-10", False),
        (("gpu-1",), "GPU-1", False),
        (("gpu-*",), "gpu-10", True),
        (("gpu-?",), "gpu-10", False),
        (("cpu-1", "gpu-[0-3]"), "gpu-3", True),
        (("cpu-1", "gpu-[0-3]"), "gpu-4", False),
        (("*",), "", True),
        ((), "gpu-1", False),
    ],
)
def test_names_and_patterns_cover_these_nodes(nodes: tuple[str, ...], node: str, covers: bool) -> None:
    assert matches_node(nodes, node) is covers
    key = Permission("k", frozenset({"agent"}), nodes, "p" * 40)
    assert (key.denial_reason(node) is None) is covers


@pytest.mark.parametrize("node", [None, 7, b"gpu-1", ["gpu-1"]])
def test_what_is_not_a_name_is_denied_with_the_key_and_its_nodes(node: object) -> None:
    reason = Permission("k", frozenset({"agent"}), ("gpu-*", "*"), "p" * 40).denial_reason(node)
    assert reason is not None and "key k may speak for gpu-*, *, not for node" in reason
