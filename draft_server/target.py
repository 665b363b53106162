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


def is_same_model(
    one: verify_pb2.GetTargetInfoResponse, other: verify_pb2.GetTargetInfoResponse
) -> bool:
    """Whether a generation that began on one may go on on the other, as far as descriptions tell:
    the ids depend on the weights and the precision."""
    names = ("model_name", "architecture", "hidden_size", "num_layers", "vocab_size", "dtype")
    return all(getattr(one, name) == getattr(other, name) for name in names)
