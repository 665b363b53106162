"""Between messages and the scheduler's events: decodes, encodes, and decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun import errors, wire
from forerun.tree import Tree
from forerun.v1 import tree_pb2
from forerun.v1 import verify_pb2 as pb
from verify_server.config import VerifyConfig
from verify_server.events import (
    CancelSession,
    Event,
    Hidden,
    KvState,
    Opened,
    OpenSession,
    Outcome,
    StreamOutput,
    Timing,
    TreeArrived,
    Verdict,
)
from verify_server.stops import FinishReason

# Opens in one message, and trees and cancels, for each session that a stream may have. Trees of
# sessions that are over meanwhile may wait beside those of the ones that took their place.
ENTRIES = 2

REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
}


@dataclass(frozen=True, slots=True)
class _OfferedTree:
    """A tree as it came."""

    message: tree_pb2.Tree

    @property
    def token_ids(self) -> Sequence[int]:
        return self.message.token_ids

    @property
    def parents(self) -> Sequence[int]:
        return self.message.parents

    @property
    def confidences(self) -> Sequence[float]:
        return self.message.confidences

    def first(self, nodes: int) -> Tree:
        stop = nodes + 1
        confidences = map(wire.dequantise_confidence, self.message.confidences[:stop])
        return Tree(
            tuple(self.message.token_ids[:stop]),
            tuple(self.message.parents[:stop]),
            tuple(confidences) or None,
        )


def limits(config: VerifyConfig, max_context: int) -> pb.Limits:
    """What a session may ask for, where it can have `max_context` tokens."""
    return pb.Limits(
        max_nodes=config.max_nodes,
        max_depth=config.max_depth,
        max_prompt_tokens=max_context - 1,
        max_context_tokens=max_context,
        max_message_bytes=config.max_message_bytes,
        max_sessions=config.max_sessions,
        max_taps=config.max_taps,
        max_entries=ENTRIES * config.max_sessions,
    )


def num_entries(request: pb.VerifyRequest, max_entries: int) -> int:
    """How many opens, trees and cancels a message holds together.

    Raises InvalidArgument, naming the field, where it holds more than `max_entries` of one.
    """
    counts = {
        "opens": len(request.opens),
        "trees": len(request.trees),
        "cancels": len(request.cancels),
    }
    for field, count in counts.items():
        if count > max_entries:
            raise errors.InvalidArgument.for_field(
                field, f"has {count} entries; at most {max_entries} may be in one message"
            )
    return sum(counts.values())


def decode(request: pb.VerifyRequest, stream: int, now_ns: int) -> list[Event]:
    """The events of a message that came on `stream` at `now_ns`; nothing of an entry is validated
    yet."""
    events: list[Event] = [_open(message, stream, now_ns) for message in request.opens]
    events += [_tree(message, stream, now_ns) for message in request.trees]
    events += [CancelSession(stream, message.session) for message in request.cancels]
    return events


def encode(output: StreamOutput) -> pb.VerifyResponse:
    """The message for what one step has for one stream."""
    return pb.VerifyResponse(
        opened=map(_opened, output.opened),
        verdicts=map(_verdict, output.verdicts),
        finished=[
            pb.Finished(
                session=finished.session,
                reason=REASONS[finished.reason],
                stats=wire.stats_to_pb(finished.stats),
            )
            for finished in output.finished
        ],
        errors=[
            pb.SessionError(
                session=failure.session,
                status=errors.to_status(failure.error),
                session_ended=failure.ended,
            )
            for failure in output.failures
        ],
        hidden_states=map(_hidden, output.hidden),
    )


def _open(message: pb.Open, stream: int, now_ns: int) -> OpenSession:
    return OpenSession(
        stream=stream,
        session=message.session,
        prompt_token_ids=message.prompt_token_ids,
        max_tokens=message.max_tokens,
        stop_token_ids=message.stop_token_ids,
        ignore_eos=message.ignore_eos,
        deadline_ms=message.deadline_ms,
        drafting=message.drafting,
        patience_us=message.patience_us,
        hidden_taps=message.hidden_taps,
        received_ns=now_ns,
    )


def _tree(message: pb.SessionTree, stream: int, now_ns: int) -> TreeArrived:
    assumed = None
    if message.HasField("assumed"):
        outcome = message.assumed
        assumed = Outcome(outcome.round, outcome.node, outcome.bonus_token_id)
    return TreeArrived(
        stream=stream,
        session=message.session,
        round=message.round,
        committed_len=message.committed_len,
        tree=_OfferedTree(message.tree),
        assumed=assumed,
        received_ns=now_ns,
    )


def _opened(opened: Opened) -> pb.Opened:
    return pb.Opened(
        session=opened.session,
        first_token_id=opened.first_token_id,
        kv=_kv(opened.kv),
        budget=wire.budget_to_pb(opened.budget),
        timing=_timing(opened.timing),
    )


def _verdict(verdict: Verdict) -> pb.Verdict:
    return pb.Verdict(
        session=verdict.session,
        round=verdict.round,
        accepted_nodes=verdict.accepted_nodes,
        token_ids=verdict.token_ids,
        bonus_token_id=verdict.bonus_token_id,
        kv=_kv(verdict.kv),
        budget=wire.budget_to_pb(verdict.budget),
        hidden_states=None if verdict.hidden is None else _hidden(verdict.hidden),
        timing=_timing(verdict.timing),
        plain=verdict.plain,
        verified_nodes=verdict.verified_nodes,
    )


def _hidden(hidden: Hidden) -> pb.HiddenStates:
    return pb.HiddenStates(
        session=hidden.session,
        first_position=hidden.first_position,
        rows=hidden.rows,
        data=hidden.data,
    )


def _kv(kv: KvState) -> pb.KvState:
    return pb.KvState(
        committed_len=kv.committed_len,
        cached_len=kv.cached_len,
        pages_held=kv.pages_held,
        pages_free=kv.pages_free,
        pages_cached=kv.pages_cached,
    )


def _timing(timing: Timing) -> pb.Timing:
    return pb.Timing(queue_ns=timing.queue_ns, verify_ns=timing.verify_ns)
