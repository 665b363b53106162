"""Messages to plain objects and back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun import wire
from forerun.errors import InvalidTree
from forerun.stats import SessionStats
from forerun.tree import Budget, Tree
from forerun.v1 import tree_pb2

TREE = Tree((9, 1, 2, 3), (-1, 0, 0, 1))


def decode(message: tree_pb2.Tree, max_nodes: int = 8) -> Tree:
    received = tree_pb2.Tree.FromString(message.SerializeToString())
    return wire.tree_from_pb(
        received, vocab_size=50, max_nodes=max_nodes, max_depth=4, root_token_id=9
    )


def test_a_tree_survives_the_wire() -> None:
    assert decode(wire.tree_to_pb(TREE)) == TREE


def test_confidences_survive_within_a_step() -> None:
    sent = Tree(TREE.token_ids, TREE.parents, (1.0, 0.9, 0.05, 0.4))
    received = decode(wire.tree_to_pb(sent))
    assert received.confidences is not None
    assert received.confidences == pytest.approx(sent.confidences, rel=0.032)
    assert received.confidences[0] == 1.0


@settings(deadline=None)
@given(st.integers(0, 255))
def test_every_byte_is_a_probability_and_comes_back(byte: int) -> None:
    probability = wire.dequantise_confidence(byte)
    assert 0 < probability <= 1
    assert wire.quantise_confidence(probability) == byte


@pytest.mark.parametrize(
    ("probability", "byte"), [(1.0, 0), (0.0, 255), (-1.0, 255), (math.nan, 255), (1.5, 0)]
)
def test_probabilities_at_the_ends(probability: float, byte: int) -> None:
    assert wire.quantise_confidence(probability) == byte


def test_a_malformed_message_is_rejected() -> None:
    with pytest.raises(InvalidTree) as caught:
        decode(tree_pb2.Tree(token_ids=[9, 1], parents=[-1, 1]))
    assert caught.value.fields[0].field == "tree.parents[1]"
    with pytest.raises(InvalidTree) as caught:
        decode(tree_pb2.Tree(token_ids=[9, 1], parents=[-1, 0], confidences=b"\0"))
    assert caught.value.fields[0].field == "tree.confidences"
    with pytest.raises(InvalidTree):
        decode(tree_pb2.Tree())


def test_a_million_nodes_on_the_wire_are_rejected() -> None:
    size = 10**6
    message = tree_pb2.Tree(token_ids=[1] * size, parents=[0] * size, confidences=bytes(size))
    with pytest.raises(InvalidTree) as caught:
        decode(message)
    assert caught.value.fields[0].field == "tree.token_ids"


def test_budget_and_statistics_survive_the_wire() -> None:
    assert wire.budget_from_pb(wire.budget_to_pb(Budget(nodes=8, depth=3))) == Budget(8, 3)
    stats = SessionStats(
        rounds=3,
        plain_steps=1,
        drafted=9,
        accepted=4,
        drafted_by_depth=[3, 2],
        accepted_by_depth=[2, 2],
        emitted=9,
        stale_trees=1,
    )
    assert wire.stats_from_pb(wire.stats_to_pb(stats)) == stats
