"""Trees keep their confidences on the way in; nothing of them is read before it is asked for."""

from __future__ import annotations

import pytest

from forerun import wire
from forerun.tree import Tree
from forerun.v1 import verify_pb2 as pb
from verify_server.events import TreeArrived
from verify_server.messages import decode


def arrived(tree: Tree) -> TreeArrived:
    request = pb.VerifyRequest(trees=[pb.SessionTree(session=3, tree=wire.tree_to_pb(tree))])
    [event] = decode(request, stream=1, now_ns=5)
    assert isinstance(event, TreeArrived)
    return event


def test_the_first_nodes_of_a_message_carry_their_confidences() -> None:
    sent = Tree((7, 4, 5, 9), (-1, 0, 0, 1), (1.0, 0.7, 0.2, 0.6))
    kept = arrived(sent).tree.first(2)
    assert (kept.token_ids, kept.parents) == ((7, 4, 5), (-1, 0, 0))
    assert kept.confidences == pytest.approx((1.0, 0.7, 0.2), rel=0.032)
    assert arrived(sent).tree.first(9).num_nodes == 3


def test_a_message_without_confidences_has_none() -> None:
    sent = Tree.chain([7, 4])
    assert arrived(sent).tree.first(5) == sent == sent.first(5)
    assert sent.first(0) == Tree.root_only(7)
