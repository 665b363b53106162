"""Real servers with the real engine, started once for each set of options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from forerun.cli.local import LocalOptions, local_servers


@pytest.fixture(scope="session")
def local_address() -> Iterator[Callable[[LocalOptions], str]]:
    """Gives the address of a draft server that runs with these options, on this machine.

    Both servers of a set of options are started when it is first asked for, and end with the
    session.
    """
    addresses: dict[LocalOptions, str] = {}
    with ExitStack() as stack:

        def start(options: LocalOptions) -> str:
            if options not in addresses:
                addresses[options] = stack.enter_context(local_servers(options))
            return addresses[options]

        yield start
