"""Addresses of gRPC: which of them never leave this machine.

Needs the standard library alone, since the client decides by it too.
"""

from __future__ import annotations

import ipaddress


def is_local(address: str) -> bool:
    """Whether an address is a Unix socket or a loopback address. A name other than localhost never
    is, since names resolve to anything."""
    if address.startswith(("unix:", "unix-abstract:")):
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
