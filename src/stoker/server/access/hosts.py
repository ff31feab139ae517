"""Classifies host names: those of this machine, and those that an attacker cannot choose through DNS."""

from __future__ import annotations

from ipaddress import ip_address

_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")


def is_local(host: str) -> bool:
    """Whether a server that listens on this host can be reached only by programs on the same machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_local_name(host: str) -> bool:
    """Whether no attacker can redirect this name: it is an IP address, or a name that public DNS does not resolve."""
    if "." not in host or host.endswith(_LOCAL_SUFFIXES):
        return True
    try:
        return bool(ip_address(host))
    except ValueError:
        return False
