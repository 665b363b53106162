"""Whether the engine still ends its steps: a deadlock or a thrashing machine raises nothing.

Owns the watching, on the event loop; knows nothing of engines or health services.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

MAX_PERIOD_S = 1.0


async def watch(
    busy_s: Callable[[], float], limit_s: float, on_change: Callable[[bool], Awaitable[None]]
) -> None:
    """Looks at `busy_s`, the age of the step that runs (0: none does), until it is cancelled.

    on_change: called with False once a step is older than `limit_s` seconds, and with True once it
    has ended after all; both within a quarter of the limit, or a second.
    """
    alive = True
    while True:
        await asyncio.sleep(min(limit_s / 4, MAX_PERIOD_S))
        age_s = busy_s()
        if (age_s <= limit_s) is alive:
            continue
        alive = not alive
        if alive:
            logger.warning("the engine has ended the step that took so long")
        else:
            logger.error("a step of the engine has not ended for %.1f s", age_s)
        await on_change(alive)
