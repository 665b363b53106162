"""Owns servers on this machine for the time of one command.

Starts a verify server and its draft servers as child processes (see children.py) that listen on
Unix sockets in a folder of their own, waits until all are healthy, and ends them. Knows nothing of
prompts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from forerun.cli.children import POLL_S, Child, child, end_with, first_ended
from forerun.cli.errors import CommandError
from forerun.cli.signals import exit_on_signals
from forerun.errors import ForerunError

# Methods that need a head, and those whose weights the target may bring.
HEADS = ("eagle", "eagle3", "ngram+eagle", "ngram+eagle3")
TARGET_LAYERS = ("mtp", "ngram+mtp")
LOADING_DRAFTS = ("standalone", *HEADS, *TARGET_LAYERS)  # methods with weights
DRAFTS = ("none", "ngram", *LOADING_DRAFTS)
DEFAULT_DRAFT = "ngram"
DEFAULT_HEAD_DRAFT = "ngram+eagle3"  # with the head that is shipped, where it drafts for the model
DTYPES = ("bfloat16", "float32")

# What the child processes run.
TARGET_PACKAGE = "verify_server"
DRAFT_PACKAGE = "draft_server"

HEALTH_TIMEOUT_S = 2.0

# The kernel takes at most 107 bytes for the path of a socket.
MAX_FOLDER_LENGTH = 90


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """What the two servers are started with; None leaves a choice to them.

    model: a checkpoint folder or a .gguf file, None for the default model. draft_model: what
    proposes where draft is "standalone" (None for the target itself), the head of "eagle" and
    "eagle3" (None for the one that is shipped), or the layer of "mtp" (None for the target's).
    threads: of each server. prefix_cache_bytes, draft_nodes, draft_depth, adaptive: of the
    verify server.
    draft_timeout_ms: of the draft server.
    """

    model: Path | None = None
    draft: str = DEFAULT_DRAFT
    draft_model: Path | None = None
    dtype: str | None = None
    page_size: int | None = None
    prefill_chunk: int | None = None
    threads: int | None = None
    prefix_cache_bytes: int | None = None
    draft_nodes: int | None = None
    draft_depth: int | None = None
    adaptive: bool = True
    draft_timeout_ms: float | None = None


def add_local_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the two servers; a flag that is not given leaves None."""
    group = parser.add_argument_group("local servers")
    group.add_argument(
        "--model", metavar="PATH", help="checkpoint folder or .gguf file; default: a small model"
    )
    group.add_argument(
        "--draft",
        choices=DRAFTS,
        help=f"how to propose tokens; default: {DEFAULT_HEAD_DRAFT} for the default model, else "
        f"{DEFAULT_DRAFT}",
    )
    group.add_argument(
        "--draft-model",
        metavar="PATH",
        help="of standalone (default: the target itself), the head of eagle and eagle3 (default: "
        "the one that is shipped, for the default model), or the layer of mtp (default: the one "
        "that the target brings)",
    )
    group.add_argument("--dtype", choices=DTYPES, help="activations and KV; default: bfloat16")
    group.add_argument("--page-size", type=int, metavar="N", help="tokens in a page of the cache")
    group.add_argument("--prefill-chunk", type=int, metavar="N", help="prompt rows in a step")
    group.add_argument(
        "--threads", type=int, metavar="N", help="of each server; default: one a physical core"
    )


def local_options(args: argparse.Namespace) -> LocalOptions:
    """The options that `add_local_arguments` has parsed.

    Raises CommandError for a file that does not exist, or for flags that do not go together.
    """
    model = Path(args.model) if args.model else None
    draft_model = Path(args.draft_model) if args.draft_model else None
    for flag, path in (("--model", model), ("--draft-model", draft_model)):
        if path is not None and not path.exists():
            raise CommandError(f"{flag}: {path} does not exist; name a folder or a .gguf file")
    # Whoever names a model to draft with has to say how.
    draft = args.draft or (DEFAULT_DRAFT if draft_model else default_draft(model))
    check_draft_model([draft], draft_model, model)
    return LocalOptions(
        model, draft, draft_model, args.dtype, args.page_size, args.prefill_chunk, args.threads
    )


def check_draft_model(drafts: Sequence[str], draft_model: Path | None, model: Path | None) -> None:
    """Raises CommandError where no draft of these can use --draft-model, or one lacks its head."""
    from forerun.models import shipped_head

    if draft_model is not None and not set(drafts) & set(LOADING_DRAFTS):
        raise CommandError(
            f"--draft-model goes with {' or '.join(LOADING_DRAFTS)}, not with {', '.join(drafts)}"
        )
    for draft in drafts:
        if draft_model is None and draft in HEADS and shipped_head(draft, model) is None:
            raise CommandError(f"{draft} needs a head; name its folder with --draft-model")


def given_local_flags(args: argparse.Namespace) -> list[str]:
    """The flags of the two servers that were given on the command line."""
    names = ("model", "draft", "draft_model", "dtype", "page_size", "prefill_chunk", "threads")
    return ["--" + name.replace("_", "-") for name in names if getattr(args, name) is not None]


@dataclass(frozen=True, slots=True)
class LocalGroup:
    """Running servers. verify: address of the verify server; verify_pid: its process. drafts: the
    addresses of the draft servers, by what they draft with."""

    verify: str
    verify_pid: int
    drafts: dict[str, str]


@contextmanager
def local_servers(options: LocalOptions) -> Iterator[str]:
    """Runs both servers inside the `with` block; yields the address of the draft server.

    Raises CommandError when a server ends before it is ready, and in place of an exception of the
    block where a server has ended; what it said is on standard error.
    """
    with local_group(options, (options.draft,)) as group:
        yield group.drafts[options.draft]


@contextmanager
def local_group(options: LocalOptions, drafts: Sequence[str]) -> Iterator[LocalGroup]:
    """Runs a verify server, and a draft server to it for each of `drafts`, inside the `with` block.

    Raises CommandError as `local_servers` does.
    """
    model = options.model or _default_model()
    with ExitStack() as stack:
        stack.enter_context(exit_on_signals())
        folder = Path(stack.enter_context(_short_temporary_folder()))
        verify = f"unix:{folder}/verify.sock"
        flags = ["--listen", verify, *_target_flags(options, model)]
        target = stack.enter_context(child("the verify server", TARGET_PACKAGE, flags))
        children = [target]
        if set(drafts) & set(LOADING_DRAFTS):
            # Both load a model then, and their progress bars would overwrite each other.
            _wait_until_healthy(children, verify)
        addresses = {draft: f"unix:{folder}/{draft}.sock" for draft in drafts}
        for draft, address in addresses.items():
            flags = _draft_flags(replace(options, draft=draft), model, verify)
            name = f"the draft server ({draft})"
            started = child(name, DRAFT_PACKAGE, ["--listen", address, *flags])
            children.append(stack.enter_context(started))
            _wait_until_healthy(children, address)
        end_with(target, children[1:])
        try:
            yield LocalGroup(verify, target.process.pid, addresses)
        except Exception as error:
            if ended := first_ended(children):
                raise CommandError(f"{ended}; what it said is above") from error
            raise


def _wait_until_healthy(children: Sequence[Child], address: str) -> None:
    """Waits for the server at `address`; a draft server is healthy once its verify server is.

    There is no limit but the children's lives: loading a large checkpoint may take minutes.
    """
    socket = Path(address.removeprefix("unix:"))
    while not (socket.exists() and _is_serving(address)):
        if ended := first_ended(children, within_s=0):
            raise CommandError(f"{ended} before it was ready; its own message is above")
        time.sleep(POLL_S)


def _is_serving(address: str) -> bool:
    from forerun.client import Client

    with Client(address, timeout=HEALTH_TIMEOUT_S, max_retries=0) as client:
        try:
            return client.health() == "SERVING"
        except ForerunError:
            return False


def _default_model() -> Path:
    from forerun.models import default_model_path

    # Here, once, and not in both servers at the same time.
    return default_model_path()


def default_draft(model: Path | None) -> str:
    """What local servers draft with for a model, None for the default one."""
    from forerun.models import shipped_head

    return DEFAULT_HEAD_DRAFT if shipped_head(DEFAULT_HEAD_DRAFT, model) else DEFAULT_DRAFT


def _short_temporary_folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.gettempdir()
    return tempfile.TemporaryDirectory(
        prefix="forerun-",
        dir=folder if len(folder) <= MAX_FOLDER_LENGTH else "/tmp",
        ignore_cleanup_errors=True,
    )


def _target_flags(options: LocalOptions, model: Path) -> list[str]:
    flags = _flags(
        model=model,
        dtype=options.dtype,
        page_size=options.page_size,
        prefill_chunk=options.prefill_chunk,
        threads=options.threads,
        prefix_cache_bytes=options.prefix_cache_bytes,
        draft_nodes=options.draft_nodes,
        draft_depth=options.draft_depth,
    )
    return flags if options.adaptive else [*flags, "--no-adaptive"]


def _draft_flags(options: LocalOptions, model: Path, verifier: str) -> list[str]:
    flags = _flags(
        verifier=verifier,
        model=model,
        draft=options.draft,
        draft_timeout_ms=options.draft_timeout_ms,
    )
    if options.draft in LOADING_DRAFTS:
        own = model if options.draft == "standalone" else None
        flags += _flags(
            draft_model=options.draft_model or own, dtype=options.dtype, threads=options.threads
        )
    return flags


def _flags(**values: object) -> list[str]:
    return [
        part
        for name, value in values.items()
        if value is not None
        for part in ("--" + name.replace("_", "-"), str(value))
    ]
