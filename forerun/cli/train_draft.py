"""`forerun train-draft`: trains a drafting head for a target, on what the target itself writes.

Owns the flags. The work is done in forerun.training, which needs the extra `torch`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from forerun.cli.errors import CommandError
from forerun.cli.parser import INTERRUPTED
from forerun.cli.torch_extra import require_torch

METHODS = ("eagle3", "eagle", "mtp")
DEFAULT_TARGET = "default"

# Of the rates for a head that begins anew: larger ones would undo what it knows.
GOING_ON = 0.6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument(
        "--target",
        default=DEFAULT_TARGET,
        metavar="PATH",
        help="checkpoint folder or .gguf file; default: the small model that is fetched",
    )
    parser.add_argument(
        "--method",
        choices=METHODS,
        default=METHODS[0],
        help="whose head to train: EAGLE-3, EAGLE-1 and -2, or a layer for multi-token prediction; "
        f"default: {METHODS[0]}",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="for the head")
    parser.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        help="for data and checkpoints, from which the same command goes on; default: OUT/work",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--threads", type=int, metavar="N", help="default: one a physical core")
    parser.add_argument(
        "--only", choices=["data", "training"], help="do this part alone; default: one, the other"
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="prompts to answer, one JSON object a line with prompt or messages; default: the "
        "target makes its own",
    )
    data.add_argument(
        "--requests",
        type=Path,
        metavar="FILE",
        help="what users ask, one JSON object a line with prompt or messages, whose last one "
        "counts: the target makes prompts that begin alike; default: common first words",
    )
    data.add_argument(
        "--answer-tokens",
        type=int,
        default=500_000,
        metavar="N",
        help="to generate; default: 500000",
    )
    data.add_argument(
        "--max-answer", type=int, default=160, metavar="N", help="tokens of an answer; default: 160"
    )
    data.add_argument(
        "--sessions", type=int, default=32, metavar="N", help="texts at once; default: 32"
    )
    training = parser.add_argument_group("training")
    training.add_argument(
        "--from",
        dest="origin",
        type=Path,
        metavar="HEAD",
        help="folder of an eagle3 head that this command wrote, to go on from; "
        "default: the target's last layer",
    )
    training.add_argument(
        "--minutes", type=float, default=0.0, metavar="N", help="of computing, all runs together"
    )
    training.add_argument(
        "--tokens",
        type=int,
        default=0,
        metavar="N",
        help="answer tokens to train on, repeats counted; default: --minutes alone decides",
    )
    training.add_argument(
        "--states-mib",
        type=int,
        default=16384,
        metavar="N",
        help="room on disk for what the target computed of documents; default: 16384",
    )
    training.add_argument(
        "--draft-vocab",
        type=int,
        default=8192,
        metavar="N",
        help="tokens that the head is taught, those most frequent in answers; eagle3 can propose "
        "no others; default: 8192",
    )


def run(args: argparse.Namespace) -> int:
    """Trains; 0 when the budget is spent, 130 when it was interrupted and can go on."""
    require_torch("training")
    if args.minutes <= 0 and args.tokens <= 0 and args.only != "data":
        raise CommandError("training needs an end; give --minutes or --tokens")
    if args.data and args.requests:
        raise CommandError("--data gives whole prompts, --requests their begins; give one of these")

    if args.origin and args.method != "eagle3":
        raise CommandError(f"--from goes on from a head for eagle3, not for {args.method}")

    from forerun.models import default_model_path
    from forerun.obs.logs import configure_logging
    from forerun.training.command import Job, train_draft
    from forerun.training.generation import GenerationSettings
    from forerun.training.methods import METHODS as HEADS
    from forerun.training.optimisation import OptimiserSettings
    from forerun.training.settings import TrainingSettings

    configure_logging("info")
    is_default = args.target == DEFAULT_TARGET
    job = Job(
        target=default_model_path() if is_default else Path(args.target),
        out=args.out,
        work=args.work or args.out / "work",
        prompts=_conversations(args.data) if args.data else None,
        requests=[messages[-1]["content"] for messages in _conversations(args.requests)]
        if args.requests
        else None,
        origin=args.origin,
        answer_tokens=args.answer_tokens,
        generation=GenerationSettings(
            seed=args.seed, max_answer=args.max_answer, sessions=args.sessions
        ),
        training=TrainingSettings(
            method=args.method,
            draft_vocab=args.draft_vocab,
            minutes=args.minutes if args.only != "data" else 1.0,
            tokens=args.tokens,
            seed=args.seed,
            states_mib=args.states_mib,
            optimiser=OptimiserSettings(muon_rate=HEADS[args.method].muon_rate).scaled(
                GOING_ON if args.origin else 1.0
            ),
        ),
        only=args.only,
        threads=args.threads,
    )
    return 0 if train_draft(job) else INTERRUPTED


def _conversations(path: Path) -> list[list[dict[str, str]]]:
    """The messages of a file of prompts; their answers, if any, are not read."""
    from forerun.cli.prompts import read_prompts

    with path.open(encoding="utf-8-sig") as file:
        prompts = read_prompts(file, str(path))
    conversations = []
    for prompt in prompts:
        if prompt.messages is not None:
            conversations.append([dict(message) for message in prompt.messages])
        elif prompt.text is not None:
            conversations.append([{"role": "user", "content": prompt.text}])
        else:
            raise CommandError(f"{prompt.origin}: prompt or messages are expected, not token ids")
    return conversations
