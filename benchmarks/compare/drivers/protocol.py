"""Owns what a driver and the comparison say to each other: one JSON object a line, in and out.

A driver runs in its peer's own environment, so this file needs the standard library alone. Standard
output belongs to the answers: whatever a library prints goes to standard error.

    {"ready": {"versions": {...}, "dtype": "..."}}
    {"case": "decode", "prompts": [[...], ...], "steps": 16}  ->  {"seconds": s, "tokens": [[...]]}
    {"case": "prefill", "prompts": [[...]]}                   ->  {"seconds": s, "tokens": [[t]]}
    {"case": "answer", "prompts": [[...], ...], "streams": 12, "max_tokens": 64}
                      ->  {"seconds": s, "tokens": [[...]], "rounds": r, "accepted": a}
    whatever goes wrong                                       ->  {"error": "reason"}
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

Prompts = list[list[int]]
Timed = tuple[float, list[list[int]]]


@dataclass
class Answered:
    """Whole answers, with drafts or without. rounds: drafts that were verified; accepted: drafted
    tokens in them that were, the token that the target adds not counted; both of all prompts."""

    seconds: float
    tokens: list[list[int]]
    rounds: int = 0
    accepted: int = 0


class Peer(ABC):
    """An engine with the model loaded. Decoding is greedy; prompts are token ids.

    versions: of the packages that matter. dtype: what it computes in, as far as it says.
    """

    versions: dict[str, str]
    dtype: str

    @abstractmethod
    def decode(self, prompts: Prompts, steps: int) -> Timed:
        """Caches the prompts, untimed, then takes `steps` steps, each one token of each prompt.

        Returns the seconds of the steps, and for each prompt the tokens that follow it: the one
        that its prefill gave, and then one a step. A repeated call may reuse what is cached.
        """

    @abstractmethod
    def prefill(self, prompt: list[int]) -> Timed:
        """Runs a prompt that was never seen before; returns the seconds up to its first token."""

    def answer(self, prompts: Prompts, streams: int, max_tokens: int) -> Answered:
        """Answers all prompts, `streams` of them at a time, each with that many tokens whatever
        they are; the seconds are those of prompts and answers."""
        raise NotImplementedError("it answers no prompts")


def answers_prompts() -> bool:
    """Whether prompts are to be answered, and timed with them: no cache may know them."""
    return len(sys.argv) > 3


def drafts() -> tuple[str, str] | None:
    """The way to draft and the folder of the head, None for plain decoding."""
    return (sys.argv[3], sys.argv[4]) if answers_prompts() and sys.argv[3] != "none" else None


def serve(load: Callable[[str, int], Peer]) -> None:
    """Answers requests until standard input ends. load: makes the peer of (folder with the exported
    models, threads), which are this script's first arguments; where it answers prompts, two more
    say how it drafts ("none": not at all) and with which head (`drafts`)."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(value: dict[str, object]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    try:
        peer = load(sys.argv[1], int(sys.argv[2]))
        answer({"ready": {"versions": peer.versions, "dtype": peer.dtype}})
        for line in sys.stdin:
            request = json.loads(line)
            if request["case"] == "answer":
                answered = peer.answer(
                    request["prompts"], request["streams"], request["max_tokens"]
                )
                answer(vars(answered))
                continue
            if request["case"] == "decode":
                seconds, tokens = peer.decode(request["prompts"], request["steps"])
            else:
                seconds, tokens = peer.prefill(request["prompts"][0])
            answer({"seconds": seconds, "tokens": tokens})
    except Exception as error:
        traceback.print_exc()
        answer({"error": f"{type(error).__name__}: {error}"})
