"""Owns the flags that say which server a command talks to, and how."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forerun.client.connection import ConnectionOptions


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of TLS and of the token."""
    group = parser.add_argument_group("connection")
    group.add_argument("--tls", action="store_true", help="use TLS, with the system's own roots")
    group.add_argument("--tls-ca", metavar="PATH", help="PEM file: roots to trust; implies --tls")
    group.add_argument("--tls-cert", metavar="PATH", help="PEM file: this client's certificate")
    group.add_argument("--tls-key", metavar="PATH", help="PEM file: this client's private key")
    group.add_argument(
        "--token-file", metavar="PATH", help="file with the token to send; default: FORERUN_TOKEN"
    )


def connection_options(args: argparse.Namespace) -> ConnectionOptions:
    """The options of a client that `add_connection_arguments` has parsed."""
    from forerun.client import TLS

    options: ConnectionOptions = {}
    if args.tls or args.tls_ca or args.tls_cert or args.tls_key:
        options["tls"] = TLS(args.tls_ca, args.tls_cert, args.tls_key)
    if args.token_file:
        options["token"] = Path(args.token_file).read_text().strip()
    return options
