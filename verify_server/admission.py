"""Which sessions are let in: the fields of an Open against the limits.

Raises the typed errors that the draft server sees; their field paths begin with "open".
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.engine.interface import EngineInfo
from forerun.errors import InvalidArgument
from verify_server.config import VerifyConfig
from verify_server.events import OpenSession
from verify_server.sessions import Session
from verify_server.stops import StopRule

MAX_STOP_IDS = 1024


class Admission:
    """Turns an OpenSession into a Session, or raises InvalidArgument."""

    def __init__(
        self, info: EngineInfo, config: VerifyConfig, *, vocab_size: int, eos_ids: Sequence[int]
    ) -> None:
        self.vocab_size = vocab_size
        # A session can have the whole pool to itself, and no more.
        self.max_context = min(info.max_context, info.pages_total * info.page_size)
        self._num_layers = info.num_layers
        self._max_taps = config.max_taps
        self._patience_ns = int(config.patience_ms * 1e6)
        self._max_patience_ns = int(config.max_patience_ms * 1e6)
        self._eos_ids = frozenset(eos_ids)
        self._arrivals = 0

    def session(self, event: OpenSession) -> Session:
        """The session that `event` asks for, not yet holding pages."""
        self._check_prompt(event.prompt_token_ids)
        if event.max_tokens < 1:
            raise InvalidArgument.for_field("open.max_tokens", "is 0; it must be in 1..4294967295")
        if len(event.stop_token_ids) > MAX_STOP_IDS:
            raise InvalidArgument.for_field(
                "open.stop_token_ids",
                f"has {len(event.stop_token_ids)} entries; at most {MAX_STOP_IDS} are allowed",
            )
        self._check_ids(event.stop_token_ids, "open.stop_token_ids")
        self._check_taps(event.hidden_taps)
        self._arrivals += 1
        eos_ids = frozenset() if event.ignore_eos else self._eos_ids
        return Session(
            stream=event.stream,
            number=event.session,
            arrival=self._arrivals,
            prompt_len=len(event.prompt_token_ids),
            committed=list(event.prompt_token_ids),
            rule=StopRule(
                stop_ids=eos_ids.union(event.stop_token_ids),
                max_emitted=event.max_tokens,
                max_committed=self.max_context,
            ),
            drafting=event.drafting,
            # Not refused: it decides about speed alone, and no draft may fail a user's request.
            patience_ns=min(event.patience_us * 1000 or self._patience_ns, self._max_patience_ns),
            deadline_ns=event.received_ns + event.deadline_ms * 10**6
            if event.deadline_ms
            else None,
            taps=tuple(event.hidden_taps),
            received_ns=event.received_ns,
        )

    def _check_prompt(self, prompt: Sequence[int]) -> None:
        if len(prompt) == 0:
            raise InvalidArgument.for_field(
                "open.prompt_token_ids", "is empty; it must hold at least one id",
                reason="EMPTY_PROMPT",
            )  # fmt: skip
        if len(prompt) > self.max_context - 1:
            raise InvalidArgument.for_field(
                "open.prompt_token_ids",
                f"has {len(prompt)} ids; at most {self.max_context - 1} are allowed",
                reason="PROMPT_TOO_LONG",
            )
        self._check_ids(prompt, "open.prompt_token_ids")

    def _check_ids(self, ids: Sequence[int], field: str) -> None:
        for index, token_id in enumerate(ids):
            if not 0 <= token_id < self.vocab_size:
                raise InvalidArgument.for_field(
                    f"{field}[{index}]",
                    f"is {token_id}; a token id must be in 0..{self.vocab_size - 1}",
                    reason="TOKEN_OUT_OF_RANGE",
                )

    def _check_taps(self, taps: Sequence[int]) -> None:
        if len(taps) > self._max_taps:
            raise InvalidArgument.for_field(
                "open.hidden_taps",
                f"has {len(taps)} entries; at most {self._max_taps} are allowed",
            )
        for index, tap in enumerate(taps):
            if tap > self._num_layers:
                raise InvalidArgument.for_field(
                    f"open.hidden_taps[{index}]",
                    f"is {tap}; a tap must be in 0..{self._num_layers}",
                )
            if index and tap <= taps[index - 1]:
                raise InvalidArgument.for_field(
                    f"open.hidden_taps[{index}]",
                    f"is {tap}, after {taps[index - 1]}; taps must ascend",
                )
