"""The allow-list of hosts that sessions may reach.

Every host has one spelling here, so the compared host is the one that is connected to. Refused are ambiguous spellings:
short or numeric addresses (`127.1`, `0x7f.0.0.1`), a final dot, NUL bytes, and IPv4 addresses inside IPv6.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ingle.errors import InvalidRequest

USUAL_PORTS = (80, 443)
"""Ports of an entry without a port."""

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
"""IPv6 networks whose addresses stand for an IPv4 address."""

_UNICAST = ipaddress.IPv6Network("2000::/3")
"""IPv6 addresses of the Internet. `is_global` also accepts old site-local ones (fec0::/10), which may be the host's."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class BadHost(ValueError):
    """A host that is not accepted; the text says why."""


def read_host(text: str) -> str:
    """Return the one spelling of a host: a name in lower case, or an address."""
    if "\0" in text or not text.isascii() or not text.isprintable():
        raise BadHost("it has characters that host names cannot have")
    host = text.lower()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if ":" in host:
        try:
            address = ipaddress.IPv6Address(host)
        except ValueError:
            raise BadHost("it is not an address") from None
        if address.scope_id is not None:
            raise BadHost("it names a network interface")
        if embeds(address):
            raise BadHost("it is an IPv4 address inside an IPv6 address")
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
        raise BadHost("it is not a host name")
    return host


def embeds(address: Address) -> bool:
    """Return whether the address stands for an IPv4 address."""
    if not isinstance(address, ipaddress.IPv6Address) or address.is_loopback:
        return False
    return any(address in network for network in _EMBEDDING)


def public(address: Address) -> bool:
    """Return whether the address belongs to the Internet and to nothing nearer."""
    if isinstance(address, ipaddress.IPv6Address) and address not in _UNICAST:
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved and not embeds(address)


def as_address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def split_port(text: str) -> tuple[str, int | None]:
    """Split `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`."""
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise BadHost("its brackets are not closed")
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
    """One entry of the allow-list."""

    host: str
    port: int | None = None
    near: bool = False
    """Whether private addresses are allowed: the operator's own package index often has one."""

    def allows(self, host: str, port: int) -> bool:
        return host == self.host and (port in USUAL_PORTS if self.port is None else port == self.port)


def read_entry(text: str, *, near: bool = False) -> Entry:
    host, port = split_port(text.strip())
    return Entry(read_host(host), port, near)


def read_option(text: str) -> Entry:
    """Return the entry that an operator wrote as an option, or raise."""
    try:
        return read_entry(text)
    except BadHost as error:
        host = text.partition("://")[2].partition("/")[0]
        problem = f"it is a URL; give its host, {host[:200]}" if host else f"{error}; give HOST or HOST:PORT"
        raise InvalidRequest(f"{text[:200]!r} cannot be an allowed host: {problem}") from None


class AllowList:
    """Hosts that may be reached; an empty list allows none."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = tuple(entries)

    def find(self, host: str, port: int) -> Entry | None:
        return next((entry for entry in self.entries if entry.allows(host, port)), None)

    def allows_address(self, entry: Entry, address: Address, port: int) -> bool:
        """Return whether an address of a listed name may be connected to."""
        if embeds(address):
            return False
        return public(address) or entry.near or self.find(address.compressed, port) is not None
