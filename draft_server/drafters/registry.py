"""The drafting methods by name, what each needs, and how it is made.

A name that is unknown, or a combination that cannot work, is refused at the start with the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from draft_server.drafters.archive import Archive
from draft_server.drafters.base import Drafter
from draft_server.drafters.calibrated import CalibratedDrafter
from draft_server.drafters.combined import CombinedDrafter
from draft_server.drafters.ngram import NgramDrafter, NgramState
from draft_server.drafters.none import NoDrafter
from draft_server.drafters.vocabulary import check_shared
from forerun.models import (
    Checkpoint,
    Tokenizer,
    default_model_path,
    load_tokenizer,
    open_checkpoint,
    shipped_head,
)

if TYPE_CHECKING:
    from draft_server.drafters.head import HeadState
    from forerun.engine import EngineConfig
    from forerun.models.config import ModelConfig
    from forerun.models.draft_head import HeadCheckpoint

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """What methods can be told. min_match, min_probability and archive_tokens are for `ngram`,
    min_product for heads. target: the target's checkpoint, for methods that share weights with it;
    the rest is for methods with a model of their own: where it is, and how its engine runs
    (kv_tokens: tokens that its KV cache holds; threads None: one a physical core; max_context None:
    as much as the model can).
    """

    min_match: int = 1
    min_probability: float = 0.03
    archive_tokens: int = 0
    min_product: float = 0.005
    target: Path | None = None
    model: Path | None = None
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    threads: int | None = None
    kv_tokens: int = 32768
    max_context: int | None = None
    prefill_chunk: int = 256


@dataclass(frozen=True, slots=True)
class Method:
    """A way to draft. model: whether a model of its own is never used, can be named, or must be,
    but where one is shipped. `create` gets the settings, the target's tokenizer and a progress
    report."""

    summary: str
    model: Literal["none", "optional", "required"]
    create: Callable[[DraftSettings, Tokenizer, Progress | None], Drafter[Any]]


def _none(settings: DraftSettings, tokenizer: Tokenizer, progress: Progress | None) -> NoDrafter:
    return NoDrafter()


def _ngram(
    settings: DraftSettings, tokenizer: Tokenizer, progress: Progress | None
) -> CalibratedDrafter[NgramState]:
    archive = Archive(settings.archive_tokens) if settings.archive_tokens else None
    drafter = NgramDrafter(settings.min_match, settings.min_probability, archive)
    return CalibratedDrafter(drafter)


def _standalone(
    settings: DraftSettings, tokenizer: Tokenizer, progress: Progress | None
) -> Drafter[Any]:
    # The native module: the other methods need none.
    from draft_server.drafters.standalone import StandaloneDrafter
    from forerun.engine import Engine

    assert settings.model is not None, "check_method comes first"
    draft_vocabulary = load_tokenizer(settings.model).vocabulary()
    shared = check_shared(
        "the target's tokenizer", tokenizer.vocabulary(), "the draft model", draft_vocabulary
    )
    if len(draft_vocabulary) != tokenizer.vocab_size:
        logger.info(
            "the draft model has %d tokens and the target %d; the first %d are drafted",
            len(draft_vocabulary),
            tokenizer.vocab_size,
            shared,
        )
    with open_checkpoint(settings.model) as checkpoint:
        config = engine_config(settings, checkpoint, vocab_size=shared)
        engine = Engine.load(checkpoint, config, progress)
    return StandaloneDrafter(engine, shared, settings.prefill_chunk)


def _head(
    name: str, settings: DraftSettings, tokenizer: Tokenizer, progress: Progress | None
) -> CalibratedDrafter[HeadState]:
    from draft_server.drafters.head import HeadDrafter
    from forerun.engine.draft_head import DraftHead

    path = settings.target or default_model_path()
    with open_checkpoint(path) as target, _open_head(name, settings, path, target.config) as head:
        vocab_size = min(tokenizer.vocab_size, target.config.vocab_size)
        running = DraftHead.load(head, target, engine_config(settings, target, vocab_size))
    return CalibratedDrafter(HeadDrafter(name, running, settings.min_product))


def _open_head(
    name: str, settings: DraftSettings, target_path: Path, target: ModelConfig
) -> HeadCheckpoint:
    from forerun.models.eagle import EagleCheckpoint
    from forerun.models.eagle3 import Eagle3Checkpoint
    from forerun.models.mtp import MtpCheckpoint

    if name == "mtp":
        return MtpCheckpoint(settings.model or target_path, target)
    model = settings.model or shipped_head(name, settings.target)
    assert model is not None, "check_method comes first"
    return (Eagle3Checkpoint if name == "eagle3" else EagleCheckpoint)(model, target)


def _ngram_and(
    name: str, settings: DraftSettings, tokenizer: Tokenizer, progress: Progress | None
) -> CombinedDrafter[Any]:
    return CombinedDrafter(
        _ngram(settings, tokenizer, progress), _head(name, settings, tokenizer, progress)
    )


def engine_config(
    settings: DraftSettings, checkpoint: Checkpoint, vocab_size: int | None = None
) -> EngineConfig:
    """How the engine of a method runs. checkpoint: whose positions bound a context."""
    from forerun.engine import EngineConfig

    context = min(
        settings.max_context or settings.kv_tokens,
        settings.kv_tokens,
        checkpoint.config.max_positions,
    )
    return EngineConfig(
        dtype=settings.dtype,
        kv_tokens=settings.kv_tokens,
        threads=settings.threads,
        # More than a context is of no use in one forward, and memory is taken for each row.
        max_rows=min(settings.prefill_chunk, context),
        max_context=settings.max_context,
        vocab_size=vocab_size,
    )


_HEADS = {
    "eagle": Method(
        "an EAGLE-1 or -2 head over what leaves the target's final norm",
        "required",
        partial(_head, "eagle"),
    ),
    "eagle3": Method(
        "an EAGLE-3 head over the target's hidden states", "required", partial(_head, "eagle3")
    ),
    "mtp": Method(
        "a layer for multi-token prediction, that of the target or of a folder of its own",
        "optional",
        partial(_head, "mtp"),
    ),
}

METHODS: dict[str, Method] = {
    "none": Method("no drafts: the target decodes plainly", "none", _none),
    "ngram": Method("what followed the same tokens earlier in the session", "none", _ngram),
    "standalone": Method("a smaller model with the target's vocabulary", "required", _standalone),
    **_HEADS,
    **{
        f"ngram+{name}": Method(
            f"the likeliest of ngram and {name}", head.model, partial(_ngram_and, name)
        )
        for name, head in _HEADS.items()
    },
}


def check_method(name: str, settings: DraftSettings) -> None:
    """Raises ValueError, with the remedy, for a method that cannot be made of these settings."""
    method = METHODS.get(name)
    if method is None:
        known = "; ".join(f"{name}: {method.summary}" for name, method in METHODS.items())
        raise ValueError(f"--draft is {name!r}, which is not a method ({known})")
    missing = method.model == "required" and settings.model is None
    if missing and shipped_head(name, settings.target) is None:
        raise ValueError(f"--draft {name} needs a draft model; name it with --draft-model")
    if method.model == "none" and settings.model is not None:
        raise ValueError(f"--draft {name} uses no model; drop --draft-model {settings.model}")


def create_drafter(
    name: str, settings: DraftSettings, tokenizer: Tokenizer, progress: Progress | None = None
) -> Drafter[Any]:
    """The drafter of a method. Loads its model where it has one, so not for the event loop.

    Raises ValueError as `check_method` does, ModelMismatch where the vocabularies differ.
    """
    check_method(name, settings)
    return METHODS[name].create(settings, tokenizer, progress)
