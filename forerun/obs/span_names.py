"""Owns the names of spans and of their attributes, by OpenTelemetry's rules for names.

All of them are counts, durations in nanoseconds, or words of this project: never what a client
wrote, nor what the target answered.
"""

from __future__ import annotations

from typing import Final

from forerun.stats import SessionStats

# The services, in `service.name`.
DRAFT_SERVICE: Final = "forerun-draft"
VERIFY_SERVICE: Final = "forerun-verify"

# Spans: of the draft server a request and its rounds, of the verify server a session (a request has
# another one where it is reopened), its prompt and its rounds.
REQUEST: Final = "forerun.request"
DRAFT_ROUND: Final = "forerun.draft.round"
SESSION: Final = "forerun.verify.session"
PREFILL: Final = "forerun.verify.prefill"
VERIFY_ROUND: Final = "forerun.verify.round"

# Attributes of a request or a session. ERROR_TYPE is OpenTelemetry's own; its value is a reason of
# the protocol.
ERROR_TYPE: Final = "error.type"
FINISH_REASON: Final = "forerun.finish_reason"
METHOD: Final = "forerun.draft.method"
PROMPT_TOKENS: Final = "forerun.prompt_tokens"
MAX_TOKENS: Final = "forerun.max_tokens"
FIRST_TOKEN_NS: Final = "forerun.first_token_ns"
ROUNDS: Final = "forerun.rounds"
PLAIN_STEPS: Final = "forerun.plain_steps"

# Of a round, the first three of a request or a session as well.
DRAFTED: Final = "forerun.drafted"
ACCEPTED: Final = "forerun.accepted"
EMITTED: Final = "forerun.emitted"
ROUND: Final = "forerun.round"
PLAIN: Final = "forerun.plain"
FALLBACK: Final = "forerun.fallback"
BUDGET_NODES: Final = "forerun.budget.nodes"
BUDGET_DEPTH: Final = "forerun.budget.depth"
DRAFT_NS: Final = "forerun.draft_ns"
WAIT_NS: Final = "forerun.wait_ns"
QUEUE_NS: Final = "forerun.queue_ns"
VERIFY_NS: Final = "forerun.verify_ns"


def counts(stats: SessionStats) -> dict[str, int]:
    """The attributes of a request or a session that has ended."""
    return {
        ROUNDS: stats.rounds,
        PLAIN_STEPS: stats.plain_steps,
        DRAFTED: stats.drafted,
        ACCEPTED: stats.accepted,
        EMITTED: stats.emitted,
    }
