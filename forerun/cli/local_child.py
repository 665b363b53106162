"""A server as the child process of one command: `python -m forerun.cli.local_child PACKAGE ...`.

Owns that the server never outlives its parent: standard input is a pipe whose other end the parent
holds, and the kernel closes that end however the parent dies. PR_SET_PDEATHSIG would end the child
as soon as the parent's *thread* ends that started it.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time

from forerun.obs.logs import configure_logging

GRACE_S = 5.0


def main() -> int:
    """Runs PACKAGE's server with the other arguments until it ends or the parent does."""
    package, *arguments = sys.argv[1:]
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    configure_logging("error")  # while the target loads, the draft server warns that it waits
    return int(importlib.import_module(f"{package}.__main__").main(arguments) or 0)


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
