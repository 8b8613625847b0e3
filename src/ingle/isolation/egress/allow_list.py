"""Which hosts a session may reach: names and addresses on the operator's list, read and compared without any guessing.

A host has one spelling here. Whatever a resolver might take for an address although it is not written as one (`127.1`,
`0x7f.0.0.1`, `2130706433`), a name with a dot at its end, a NUL, an address of version 4 inside one of version 6 is
refused, so that what was compared is what is connected to.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

USUAL_PORTS = (80, 443)
"""What an entry without a port stands for."""

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)")
MAX_NAME = 253

_EMBEDDING = [
    ipaddress.IPv6Network(each)
    for each in (
        *("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48"),
        *("2002::/16", "2001::/32"),
    )
]
"""Addresses of version 6 that stand for one of version 4."""

_UNICAST = ipaddress.IPv6Network("2000::/3")
"""What of version 6 is given out for the Internet. Elsewhere lie networks that `is_global` does not know to be near:
those of a site, as they once were (fec0::/10), at which a virtual machine still finds its host."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class BadHost(ValueError):
    """Its text says what is wrong with it."""


def read_host(text: str) -> str:
    """The one spelling of a host: a name in lower case, or an address."""
    if "\0" in text or not text.isascii() or not text.isprintable():
        raise BadHost("it has characters that no host's name has")
    host = text.lower()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if ":" in host:
        try:
            address = ipaddress.IPv6Address(host)
        except ValueError:
            raise BadHost("it is not an address") from None
        if address.scope_id is not None:
            raise BadHost("an address may name no interface")
        if embeds(address):
            raise BadHost("it is an address of version 4 inside one of version 6")
        return address.compressed
    if host.endswith("."):
        raise BadHost("it ends with a dot")
    labels = host.split(".")
    if _NUMERIC.fullmatch(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise BadHost("it is an address in an unusual notation") from None
    if len(host) > MAX_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadHost("it is not the name of a host")
    return host


def embeds(address: Address) -> bool:
    """Whether it stands for an address of version 4."""
    if not isinstance(address, ipaddress.IPv6Address) or address.is_loopback:
        return False
    return any(address in network for network in _EMBEDDING)


def public(address: Address) -> bool:
    """Whether it is an address of the Internet, and of nothing nearer."""
    if isinstance(address, ipaddress.IPv6Address) and address not in _UNICAST:
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved and not embeds(address)


def as_address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def split_port(text: str) -> tuple[str, int | None]:
    """`HOST`, `HOST:PORT` or `[ADDRESS]:PORT`."""
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise BadHost("its brackets are not closed as they should be")
        host, port = host[1:], rest[1:] if rest else None
    elif text.count(":") > 1:
        host, port = text, None
    else:
        host, colon, after = text.partition(":")
        port = after if colon else None
    if port is None:
        return host, None
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise BadHost(f"{port[:20]!r} is not a port")
    return host, int(port)


@dataclass(frozen=True)
class Entry:
    """One line of the list."""

    host: str
    port: int | None = None
    near: bool = False
    """It may have an address that is not public: the operator's own package index is often near."""

    def allows(self, host: str, port: int) -> bool:
        return host == self.host and (port in USUAL_PORTS if self.port is None else port == self.port)


def read_entry(text: str, *, near: bool = False) -> Entry:
    host, port = split_port(text.strip())
    return Entry(read_host(host), port, near)


class AllowList:
    """Hosts that may be reached; an empty list allows nothing."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = tuple(entries)

    def find(self, host: str, port: int) -> Entry | None:
        return next((entry for entry in self.entries if entry.allows(host, port)), None)

    def allows_address(self, entry: Entry, address: Address, port: int) -> bool:
        """Whether an address that a listed name has may be connected to."""
        if embeds(address):
            return False
        return public(address) or entry.near or self.find(address.compressed, port) is not None
