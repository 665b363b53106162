"""`forerun health`: asks a server's grpc.health.v1 service whether it is ready.

Owns the exit code that container health checks read: 0 when it is serving, else 1.
"""

from __future__ import annotations

import argparse
import json

from forerun.cli.connection import add_connection_arguments, connection_options
from forerun.cli.limits import check_timeout

DEFAULT_TIMEOUT_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument(
        "address",
        nargs="?",
        help="host:port or unix:/path of a verify or a draft server; default: FORERUN_ADDRESS",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT_S,
        metavar="SECONDS",
        help=f"how long to wait for the answer; default: {DEFAULT_TIMEOUT_S:g}",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the status (one of grpc.health.v1, or UNREACHABLE); 0 for SERVING, else 1."""
    from forerun.client import Client
    from forerun.errors import ForerunError

    check_timeout(args.timeout)
    detail = ""
    with Client(args.address, timeout=args.timeout, **connection_options(args)) as client:
        try:
            status = client.health()
        except ForerunError as error:
            status, detail = "UNREACHABLE", str(error)
    if args.json:
        print(json.dumps({"status": status, "detail": detail}, ensure_ascii=False))
    else:
        print(f"{status}: {detail}" if detail else status)
    return 0 if status == "SERVING" else 1
