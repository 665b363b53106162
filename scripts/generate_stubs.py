"""Generates the Python stubs of proto/ into forerun/v1 (checked in).

    python scripts/generate_stubs.py [OUTPUT_FOLDER]

Messages and services come from the pinned grpcio-tools, their types from mypy-protobuf. The
generated code refuses a protobuf runtime older than the generator, so the generator's version and
the floor of `protobuf` in pyproject.toml move together.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PROTO_ROOT = REPOSITORY / "proto"
# googleapis-common-protos installs google/rpc/status.proto beside its Python module.
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))


def proto_files() -> list[Path]:
    return sorted(PROTO_ROOT.rglob("*.proto"))


def protoc(arguments: list[str], files: list[Path]) -> None:
    """Runs protoc on files of proto/; raises CalledProcessError where it fails."""
    scripts = sysconfig.get_path("scripts")
    environment = os.environ | {"PATH": scripts + os.pathsep + os.environ.get("PATH", os.defpath)}
    includes = [f"-I{PROTO_ROOT}", f"-I{SITE_PACKAGES}"]
    names = [str(path.relative_to(PROTO_ROOT)) for path in files]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", *includes, *arguments, *names],
        check=True,
        env=environment,
        cwd=PROTO_ROOT,
    )


def generate(output: Path) -> None:
    """Writes forerun/v1/*_pb2.py, *_pb2.pyi, *_pb2_grpc.py and *_pb2_grpc.pyi under `output`."""
    output.mkdir(parents=True, exist_ok=True)
    files = proto_files()
    services = [path for path in files if "\nservice " in path.read_text(encoding="utf-8")]
    protoc([f"--python_out={output}", f"--mypy_out=quiet:{output}"], files)
    protoc([f"--grpc_python_out={output}", f"--mypy_grpc_out=quiet:{output}"], services)


if __name__ == "__main__":
    generate(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else REPOSITORY)
