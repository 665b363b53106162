"""`python -m forerun.cli` is the `forerun` command."""

from __future__ import annotations

import sys

from forerun.cli.parser import main

sys.exit(main())
