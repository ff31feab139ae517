"""Which names of hosts mean this machine, or at least none that a stranger chose."""

from __future__ import annotations

from ipaddress import ip_address

_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")


def is_local(host: str) -> bool:
    """Only programs on this machine reach a server that listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_local_name(host: str) -> bool:
    """An attacker cannot point this name at another machine: it is an address, or a name that DNS does not resolve."""
    if "." not in host or host.endswith(_LOCAL_SUFFIXES):
        return True
    try:
        return bool(ip_address(host))
    except ValueError:
        return False
