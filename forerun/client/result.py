"""What a generation returns, and how it is put together from the messages of a stream.

Shared by the sync and the async client. Knows nothing of calls.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from forerun import wire
from forerun.errors import Internal
from forerun.stats import SessionStats
from forerun.v1 import generate_pb2, verify_pb2


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of the answer as it arrives.

    token_ids: in order, the end-of-sequence id included. accepted: how many of them, from the
    first, were proposed by the drafter. text: never splits a character, so it may lag behind.
    """

    token_ids: tuple[int, ...]
    accepted: int
    text: str


@dataclass(slots=True)
class GenerationStats(SessionStats):
    """Counts of the generation (see SessionStats), and its times as the server measured them.

    prompt_tokens: ids of the prompt. ttft_s: seconds from receipt of the request to the first
    token. total_s: seconds from receipt to the last token.
    """

    prompt_tokens: int = 0
    ttft_s: float = 0.0
    total_s: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first one, over the time after it; None where there are none."""
        seconds = self.total_s - self.ttft_s
        return (self.emitted - 1) / seconds if self.emitted > 1 and seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole answer. finish_reason: "stop" (an end-of-sequence id, a stop id or string), "length"
    or "cancelled" (by the server)."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    stats: GenerationStats


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Which model answers, and the limits; fields as in GetModelInfoResponse."""

    model_name: str
    architecture: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    draft: str
    max_prompt_tokens: int
    max_context_tokens: int
    max_message_bytes: int
    has_chat_template: bool
    version: str
    isa: str

    @classmethod
    def from_pb(cls, message: generate_pb2.GetModelInfoResponse) -> ModelInfo:
        values = {field.name: getattr(message, field.name) for field in fields(cls)}
        return cls(**values | {"eos_token_ids": tuple(message.eos_token_ids)})


class Transcript:
    """Collects the messages of one stream."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._texts: list[str] = []
        self._prompt_tokens = 0
        self._final: generate_pb2.Final | None = None

    def add(self, message: generate_pb2.GenerateResponse) -> Chunk | None:
        """The chunk of a message; None where it carries neither tokens nor text."""
        self._prompt_tokens = message.prompt_tokens or self._prompt_tokens
        if message.HasField("final"):
            self._final = message.final
        if not message.token_ids and not message.text:
            return None
        self.token_ids += message.token_ids
        self._texts.append(message.text)
        return Chunk(tuple(message.token_ids), message.accepted, message.text)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def complete(self) -> bool:
        return self._final is not None

    def generation(self) -> Generation:
        """The whole answer; raises Internal where the stream ended without its last message."""
        if self._final is None:
            raise Internal("the stream ended without its final message; the server is at fault")
        reason = verify_pb2.FinishReason.Name(self._final.finish_reason)
        stats = GenerationStats(
            **asdict(wire.stats_from_pb(self._final.stats)),
            prompt_tokens=self._prompt_tokens,
            ttft_s=self._final.time_to_first_token_us / 1e6,
            total_s=self._final.total_us / 1e6,
        )
        return Generation(
            token_ids=tuple(self.token_ids),
            text=self.text,
            finish_reason=reason.removeprefix("FINISH_REASON_").lower(),
            stats=stats,
        )
