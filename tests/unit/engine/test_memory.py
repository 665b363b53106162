"""An engine that does not fit in memory is an error that names its sizes."""

from __future__ import annotations

import subprocess
import sys

from tests.fixtures.tiny import shared_checkpoint

SCRIPT = """\
import resource, sys
from verify_server.__main__ import main
resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
sys.exit(main(["--listen", "127.0.0.1:0", "--threads", "1", *sys.argv[1:]]))
"""


def test_a_cache_beyond_memory_names_the_flags_to_lower() -> None:
    flags = [
        "--model",
        str(shared_checkpoint()),
        "--kv-tokens",
        str(1 << 30),
        "--page-size",
        "4096",
    ]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *flags], capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("verify_server: error: ") and "--kv-tokens" in last
    assert "1073741824 tokens" in last and "Traceback" not in done.stderr
