"""Names what this machine lacks before anything is installed, each with its remedy.

It uses the standard library alone.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig


def missing_prerequisites() -> list[str]:
    """Returns one line for each thing that is missing; an empty list means all is there."""
    missing: list[str] = []
    if sys.version_info < (3, 10):  # noqa: UP036 - an older one is what this tells of
        found = ".".join(str(part) for part in sys.version_info[:3])
        missing.append(
            f"Python 3.10 or newer is needed, {sys.executable} is {found}; "
            "name a newer one: make PYTHON=python3.12 ..."
        )
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        missing.append("python3 cannot make virtual environments; apt install python3-venv")
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        missing.append("the C headers of Python are missing; apt install python3-dev")
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "c++")):
        missing.append("no C++ compiler was found; apt install g++")
    return missing


if __name__ == "__main__":
    lines = missing_prerequisites()
    for line in lines:
        print("forerun: " + line, file=sys.stderr)
    sys.exit(1 if lines else 0)
