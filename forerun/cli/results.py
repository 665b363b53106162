"""Owns the line of output of one generation. Knows nothing of servers."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forerun.client import Generation

OUTPUT_KEYS = frozenset({"token_ids", "text", "finish_reason", "stats"})


def output_line(
    carried: Mapping[str, Any], generation: Generation, eos_token_ids: Collection[int]
) -> str:
    """One JSON object without a line break: the carried keys, then those of the generation.

    `tokens_per_second` is that of the tokens after the first one; null where there are none.
    """
    stats = generation.stats
    rate = stats.tokens_per_second
    added = {
        "token_ids": without_eos(generation.token_ids, eos_token_ids),
        "text": generation.text,
        "finish_reason": generation.finish_reason,
        "stats": {
            "rounds": stats.rounds,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "accepted_by_depth": stats.accepted_by_depth,
            "emitted": stats.emitted,
            "ttft_ms": round(1000 * stats.ttft_s, 3),
            "tokens_per_second": None if rate is None else round(rate, 2),
        },
    }
    return json.dumps({**carried, **added}, ensure_ascii=False, allow_nan=False)


def without_eos(token_ids: tuple[int, ...], eos_token_ids: Collection[int]) -> tuple[int, ...]:
    """The ids without the end-of-sequence id that ended them, if one did."""
    return token_ids[:-1] if token_ids and token_ids[-1] in eos_token_ids else token_ids
