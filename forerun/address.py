"""Addresses of gRPC: which of them never leave this machine, and ports that none can have.

Needs the standard library alone, since the client decides by it too.
"""

from __future__ import annotations

import ipaddress

MAX_PORT = 65535
UNIX = ("unix:", "unix-abstract:")


def check_port(address: str) -> None:
    """Raises ValueError where an address names a port beyond MAX_PORT: gRPC would take it modulo
    65536. An address may do without a port."""
    port = address.rpartition(":")[2]
    number = port.removeprefix("-").isdecimal()
    if number and not address.startswith(UNIX) and not 0 <= int(port) <= MAX_PORT:
        raise ValueError(f"{address}: the port is {port}; it must be in 0..{MAX_PORT}")


def check_listen_address(address: str) -> None:
    """Raises ValueError for what is neither a Unix socket nor host:port, port 0 being any."""
    check_port(address)
    if not address.startswith(UNIX) and not address.rpartition(":")[2].isdecimal():
        raise ValueError(f"{address} names no port; give host:port, port 0 being any that is free")


def is_local(address: str) -> bool:
    """Whether an address is a Unix socket or a loopback address. A name other than localhost never
    is, since names resolve to anything."""
    if address.startswith(UNIX):
        return True
    authority = address.rsplit("/", 1)[-1]
    for scheme in ("dns:", "ipv4:", "ipv6:"):
        authority = authority.removeprefix(scheme)
    if "," in authority:  # ipv4:address,address
        return False
    # [::1]:80, ::1, host:80 or host
    bare = authority.count(":") > 1 and not authority.startswith("[")
    host = authority if bare else authority.rpartition(":")[0] or authority
    host = host.strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
