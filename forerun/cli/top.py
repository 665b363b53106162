"""`forerun top`: what servers do at this moment, from their metrics, in a terminal.

Owns the flags and the view. What is read, and what it means, is in forerun.obs.scrape and
docs/metrics.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from forerun.cli.errors import CommandError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from forerun.obs.scrape import Change, Scrape

BAR = 24  # characters
SCRAPE_TIMEOUT_S = 2.0
MAX_INTERVAL_S = 86_400
# Another value is another process, whose counters began anew.
STARTED = "process_start_time_seconds"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument(
        "servers",
        nargs="+",
        metavar="HOST:PORT",
        help="of metrics, as given by --metrics-port; draft and verify servers in any order",
    )
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="between readings; default 1"
    )
    parser.add_argument(
        "--once", action="store_true", help="print what happened in one interval, and end"
    )


def run(args: argparse.Namespace) -> int:
    """Shows until Ctrl-C, which is its ordinary end: 0. With --once, 1 where a server had no
    metrics. What is no terminal gets one view after the other."""
    from rich.console import Console
    from rich.live import Live

    if not 0 < args.interval < MAX_INTERVAL_S:
        raise CommandError(f"--interval is {args.interval}; it must be above 0, and a day at most")
    console = Console()
    readings = _readings(args.servers, args.interval)
    if args.once:
        before, after = next(readings)
        console.print(_view(args.servers, before, after))
        return int(any(isinstance(reading, str) for reading in (*before, *after)))
    try:
        if not console.is_terminal:
            for before, after in readings:
                console.print(_view(args.servers, before, after))
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for before, after in readings:
                live.update(_view(args.servers, before, after), refresh=True)
    except KeyboardInterrupt:
        pass
    return 0


def _readings(
    servers: list[str], interval_s: float
) -> Iterator[tuple[list[Scrape | str], list[Scrape | str]]]:
    """All servers' readings at the beginning and at the end of each interval, without end."""
    with ThreadPoolExecutor(len(servers)) as threads:
        before = list(threads.map(_read, servers))
        while True:
            time.sleep(interval_s)
            after = list(threads.map(_read, servers))
            yield before, after
            before = after


def _read(address: str) -> Scrape | str:
    """The metrics, or why there are none."""
    from forerun.obs.scrape import scrape

    try:
        return scrape(address, SCRAPE_TIMEOUT_S)
    except (OSError, ValueError) as error:
        return f"no metrics: {getattr(error, 'reason', None) or error}"


def _view(
    servers: list[str], before: list[Scrape | str], after: list[Scrape | str]
) -> RenderableType:
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    from forerun.obs.scrape import Change

    parts: list[RenderableType] = []
    for server, old, new in zip(servers, before, after, strict=True):
        if isinstance(new, str):
            body, title = Text(new), Text(server)  # not as markup, which an address may look like
            parts.append(Panel(body, title=title, title_align="left", border_style="red"))
            continue
        if isinstance(old, str) or old.value(STARTED) != new.value(STARTED):
            body = Text("answers since a moment ago; figures come with the next reading")
            parts.append(Panel(body, title=Text(server), title_align="left"))
            continue
        change = Change(old, new)
        is_draft = any(sample.name.startswith("forerun_draft_") for sample in new.samples)
        level = next((k for k, v in new.by("forerun_isa_info", "level").items() if v), "?")
        name = f"{'draft' if is_draft else 'verify'} server {server}, {level}"
        view = _draft(change) if is_draft else _verify(change)
        parts.append(Panel(view, title=Text(name), title_align="left"))
    return Group(*parts)


def _draft(change: Change) -> RenderableType:
    from rich.columns import Columns

    drafted, accepted = "forerun_draft_drafted_nodes_total", "forerun_draft_accepted_total"
    steps = change.of("forerun_draft_rounds_total") + change.of("forerun_draft_plain_steps_total")
    emitted = change.of("forerun_draft_emitted_total")
    up = change.after.value("forerun_draft_verifier_up") == 1
    figures = _figures(
        ("tokens/s", _number(emitted / change.seconds)),
        ("open generations", _number(change.after.value("forerun_draft_sessions"))),
        ("verify server", "up" if up else "[red]away[/red]"),
        ("acceptance rate", _percent(change.ratio(accepted, drafted))),
        ("accepted a round", _number(change.ratio(accepted, "forerun_draft_rounds_total"), 2)),
        ("tokens a step", _number(emitted / steps if steps else None, 2)),
        ("first token, p90", _time(change.quantile("forerun_draft_first_token_seconds", 0.9))),
        ("between tokens, p90", _time(change.quantile("forerun_draft_inter_token_seconds", 0.9))),
    )
    proposed = change.after.by("forerun_draft_drafted_by_depth_total", "depth")
    depths = _bars("accepted by depth")
    for depth in sorted(proposed, key=int):
        at = change.of("forerun_draft_drafted_by_depth_total", depth=depth)
        if at:
            share = change.of("forerun_draft_accepted_by_depth_total", depth=depth) / at
            depths.add_row(depth, _bar(share), _percent(share))
    parts = "forerun_draft_round_part_seconds_total"
    spent = {part: change.of(parts, part=part) for part in change.after.by(parts, "part")}
    total, rounds = sum(spent.values()), change.of("forerun_draft_round_seconds_count")
    split = _bars("time of a round")
    for part, seconds in spent.items():
        if rounds and total:
            split.add_row(part, _bar(seconds / total), _time(seconds / rounds))
    return Columns([figures, depths, split], padding=(0, 4))


def _verify(change: Change) -> RenderableType:
    from rich.columns import Columns

    steps = change.of("forerun_verify_step_seconds_count")
    rows = change.of("forerun_verify_rows_total")
    seconds = change.of("forerun_verify_step_seconds_sum")
    figures = _figures(
        ("tokens/s", _number(change.rate("forerun_verify_emitted_total"))),
        ("draft servers", _number(change.after.value("forerun_verify_streams"))),
        ("steps/s", _number(steps / change.seconds)),
        ("rows a step", _number(rows / steps if steps else None, 1)),
        ("time of a step", _time(seconds / steps if steps else None)),
        ("busy", _percent(min(1.0, seconds / change.seconds))),
        ("wait for a step, p90", _time(change.quantile("forerun_verify_queue_seconds", 0.9))),
        (
            "budget, nodes",
            _number(
                change.ratio("forerun_verify_granted_nodes_total", "forerun_verify_grants_total"), 1
            ),
        ),
    )
    pages = change.after.by("forerun_verify_pages", "state")
    pool = _bars("KV pages")
    for state, count in pages.items():
        pool.add_row(state, _bar(count / max(sum(pages.values()), 1)), _number(count))
    sessions = _bars("sessions")
    phases = change.after.by("forerun_verify_sessions", "phase")
    for phase, count in phases.items():
        sessions.add_row(phase, _bar(count / max(sum(phases.values()), 1)), _number(count))
    return Columns([figures, pool, sessions], padding=(0, 4))


def _figures(*rows: tuple[str, str]) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _bars(title: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(style="green", overflow="crop")  # the one that gives way to a narrow terminal
    table.add_column(justify="right", no_wrap=True)
    return table


def _bar(share: float) -> str:
    return ("█" * round(BAR * min(max(share, 0.0), 1.0))).ljust(BAR)


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
