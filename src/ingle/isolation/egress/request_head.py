"""Request heads of the proxy: parsed strictly so that they have one meaning, and written anew. No I/O."""

import re
from dataclasses import dataclass, field

from ingle.isolation.egress.allow_list import BadHost, read_host, split_port

MAX_HEADERS = 100

_METHOD = re.compile(rb"[A-Z]{1,20}")
_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ABSOLUTE = re.compile(r"http://([^/?#\s]+)([^\x00-\x20\x7f\s#]*)", re.IGNORECASE)
_PATH = re.compile(r"/[^\x00-\x20\x7f\s#]*|\*")
_HOP_BY_HOP = {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host"}


class Refused(Exception):
    """A refused request: the status to answer with, and a sentence."""

    def __init__(self, status: int, text: str, host: str | None = None, grant: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.host = host
        """The requested host and port, if it is not granted."""
        self.grant = grant
        """The host as an operator would grant it."""


@dataclass
class Request:
    method: bytes
    host: str
    port: int
    path: str
    fields: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: int = 0

    @property
    def tunnel(self) -> bool:
        return self.method == b"CONNECT"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 80 and not self.tunnel else f"{host}:{self.port}"

    def head(self, upstream: bool) -> bytes:
        """Return the head to forward, with the end-to-end fields only."""
        target = f"http://{self.authority}{self.path}" if upstream else self.path
        lines = [self.method + b" " + target.encode("latin-1") + b" HTTP/1.1", b"Host: " + self.authority.encode()]
        lines += [name + b": " + value for name, value in self.fields]
        return b"\r\n".join([*lines, b"Connection: close", b"", b""])


def _read_head(head: bytes) -> tuple[bytes, str, list[bytes]]:
    """Return the method, the target and the field lines."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or not _METHOD.fullmatch(words[0]) or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise Refused(400, "this is not a request to an HTTP proxy")
    if len(lines) > MAX_HEADERS:
        raise Refused(431, f"the request has more than {MAX_HEADERS} header fields")
    return words[0], words[1].decode("latin-1"), lines


def read_request(head: bytes) -> Request:
    """Parse the head of a request, or raise `Refused`."""
    method, target, lines = _read_head(head)
    try:
        if method == b"CONNECT":
            name, port = split_port(target)
            if port is None:
                raise BadHost("a tunnel needs a port")
            request = Request(method, read_host(name), port, "")
        else:
            found = _ABSOLUTE.fullmatch(target)
            if found is None:
                raise Refused(400, "only http:// addresses can be requested here; use CONNECT for others")
            if "@" in found[1]:
                raise BadHost("it has a user name before it")
            name, port = split_port(found[1])
            path = found[2] if found[2].startswith("/") else f"/{found[2]}"
            request = Request(method, read_host(name), port or 80, path)
    except BadHost as error:
        raise Refused(400, f"the host in the request is refused: {error}") from None
    return _with_fields(request, lines)


def read_inner(head: bytes, tunnel: Request) -> Request:
    """Parse the head of a plain request in a tunnel. Its host is always the tunnel's."""
    method, target, lines = _read_head(head)
    if not _PATH.fullmatch(target):
        raise Refused(400, "only a path can be requested in a tunnel")
    return _with_fields(Request(method, tunnel.host, tunnel.port, target), lines)


def _with_fields(request: Request, lines: list[bytes]) -> Request:
    lengths: set[bytes] = set()
    dropped: set[bytes] = set(_HOP_BY_HOP)
    fields: list[tuple[bytes, bytes]] = []
    for line in lines:
        name, colon, value = line.partition(b":")
        value = value.strip(b" \t")
        if not colon or not _FIELD.fullmatch(name) or any(byte < 32 and byte != 9 for byte in value):
            raise Refused(400, "a header field of the request is malformed")
        lower = name.lower()
        if lower == b"transfer-encoding":
            raise Refused(411, "a body without a known length cannot be forwarded; send a Content-Length")
        if lower == b"content-length":
            lengths.add(value)
        elif lower == b"connection":
            dropped |= {each.strip().lower() for each in value.split(b",")}
        fields.append((name, value))
    unclear = len(lengths) > 1 or any(not each.isdigit() or len(each) > 15 for each in lengths)
    # Without its length, the body would be read as the next request.
    if unclear or b"content-length" in dropped:
        raise Refused(400, "the length of the request's body is ambiguous")
    request.body = int(lengths.pop()) if lengths else 0
    request.fields = [
        (name, value)
        for name, value in fields
        if name.lower() not in dropped and not name.lower().startswith(b"proxy-")
    ]
    return request
