"""What is known of the target before anything is drafted for it.

Owns the check that both servers mean the same tokens by the same ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from draft_server.drafters.vocabulary import check_equal
from forerun.v1 import verify_pb2

if TYPE_CHECKING:
    from forerun.v1.verify_pb2_grpc import VerifyServiceAsyncStub

Metadata = tuple[tuple[str, str], ...]


class Vocabulary(Protocol):
    """What the check reads of a tokenizer (forerun.models.Tokenizer)."""

    @property
    def fingerprint(self) -> str: ...

    def vocabulary(self) -> list[bytes]: ...


async def describe_target(
    stub: VerifyServiceAsyncStub, tokenizer: Vocabulary, timeout_s: float, metadata: Metadata = ()
) -> verify_pb2.GetTargetInfoResponse:
    """The target's description, once it is known to share the vocabulary.

    Raises ModelMismatch that names the first id that differs and what it stands for on both sides;
    grpc.aio.AioRpcError where the server cannot be asked within `timeout_s`.
    """
    info = await stub.GetTargetInfo(
        verify_pb2.GetTargetInfoRequest(),
        timeout=timeout_s,
        metadata=metadata,
    )
    if info.vocabulary_fingerprint == tokenizer.fingerprint:
        return info
    full = await stub.GetTargetInfo(
        verify_pb2.GetTargetInfoRequest(include_vocabulary=True),
        timeout=timeout_s,
        metadata=metadata,
    )
    check_equal(
        "the draft server's tokenizer", tokenizer.vocabulary(), "the target", list(full.vocabulary)
    )
    return info


def difference(
    began: verify_pb2.GetTargetInfoResponse, now: verify_pb2.GetTargetInfoResponse
) -> str:
    """Why a generation that began on one target cannot go on on the other; "" where it can.

    Its ids depend on the weights, the precision and, in bfloat16, the level of the kernels; its end
    depends on the end-of-sequence ids, and on the limits that its client was told.
    """
    told_began, told_now = _what_matters(began), _what_matters(now)
    return ", ".join(
        f"{name} is {told_now[name]}, it was {told_began[name]}"
        for name in told_began
        if told_now[name] != told_began[name]
    )


def _what_matters(target: verify_pb2.GetTargetInfoResponse) -> dict[str, object]:
    return {
        "model_name": target.model_name,
        "architecture": target.architecture,
        "model_fingerprint": target.model_fingerprint,
        "vocab_size": target.vocab_size,
        "hidden_size": target.hidden_size,
        "num_layers": target.num_layers,
        "eos_token_ids": list(target.eos_token_ids),
        "dtype": target.dtype,
        "isa": target.isa,
        "max_prompt_tokens": target.limits.max_prompt_tokens,
        "max_context_tokens": target.limits.max_context_tokens,
    }
