"""Lints proto/ with buf, by the rules in buf.yaml.

    python scripts/lint_protos.py

buf would fetch google/rpc/status.proto from its registry; given a descriptor set that protoc built,
it needs no network. Exits with buf's status.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from generate_stubs import REPOSITORY, proto_files, protoc


def lint() -> int:
    """Prints what buf finds; 0 when that is nothing."""
    buf = Path(sysconfig.get_path("scripts"), "buf")
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder, "image.binpb")
        protoc(
            [f"--descriptor_set_out={image}", "--include_imports", "--include_source_info"],
            proto_files(),
        )
        command = [str(buf), "lint", str(image), "--config", str(REPOSITORY / "buf.yaml")]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(lint())
