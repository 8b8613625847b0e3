"""`ingle cp`: copy files and folders into a session and out of it."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from urllib.parse import urlencode

import click

from ingle import errors
from ingle.cli.echo import echo
from ingle.cli.failure import Failure
from ingle.cli.services import Choice, Target, find_session, service_options
from ingle.quantities import rounded_size

PAUSE_SECONDS = 120.0
"""How long a stream may pause."""

BLOCK = 256 * 1024
PROGRESS_SECONDS = 0.2
STREAM = "-"


@click.command(epilog="Example: ingle cp data main:; ingle cp main:out.csv .; ingle cp - main:in.txt < in.txt")
@click.argument("source")
@click.argument("target")
@service_options
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def cp(source: str, target: str, choice: Choice, quiet: bool) -> None:
    """Copy a file or a folder into a session or out of it.

    SESSION:PATH names a path of a session, relative to its folder or absolute in a granted folder. If the target is an
    existing folder, the copy is made inside of it. `-` is standard input or output; a folder is written as a tar
    stream.
    """
    from_session, to_session = _session(source), _session(target)
    if (from_session is None) == (to_session is None):
        raise Failure("exactly one of the two must be SESSION:PATH; write a local path with a colon as ./a:b")
    progress = Progress(quiet)
    try:
        if to_session is not None:
            service = find_session(choice, to_session)
            told = _upload(service, to_session, source, target.partition(":")[2], progress)
        else:
            assert from_session is not None
            service = find_session(choice, from_session)
            told = _download(service, from_session, source.partition(":")[2], target, progress)
    finally:
        progress.clear()
    if told and not quiet:
        echo(told, err=STREAM in (source, target))


def _session(text: str) -> str | None:
    """Return the session that an argument names, or None for a local path."""
    name, colon, _ = text.partition(":")
    return name if colon and name and "/" not in name else None


# --- into the session ---


def _upload(service: Target, session: str, source: str, remote: str, progress: "Progress") -> str:
    from ingle.client.address import file_address
    from ingle.client.transfer import Upload

    if source == STREAM:
        if not remote or remote.endswith("/"):
            raise Failure("standard input needs the name of a file: SESSION:PATH")
        below, query = file_address(remote)
        _send(service, session, below, query or {}, progress.watch(_blocks()))
        return ""
    name = os.path.basename(os.path.abspath(source))
    path = _join(remote, name) if _is_remote_folder(service, session, remote) else remote
    try:
        upload = Upload(source, path)
    except OSError as error:
        raise Failure(f"{source} cannot be read: {error.strerror}") from None
    try:
        said = _send(service, session, "/archive", {"path": upload.folder}, progress.watch(upload.pieces()))
    finally:
        upload.close()
    done = upload.done(said["files"], said["bytes"])
    return _summary(done.files, done.bytes, f"{session}:{path}", done.skipped)


def _is_remote_folder(service: Target, session: str, path: str) -> bool:
    if not path or path.endswith("/"):
        return True
    try:
        service.ask("GET", f"/v1/sessions/{session}/files?{urlencode({'folder': path})}")
    except (errors.FileNotThere, errors.InvalidRequest):
        return False
    return True


def _send(
    service: Target, session: str, below: str, query: "dict[str, str | int | float]", body: Iterable[bytes]
) -> "dict[str, int]":
    import json

    path = f"/v1/sessions/{session}{below}?{urlencode(query)}"
    with service.client.open("PUT", path, body, timeout=PAUSE_SECONDS) as answer:
        said: dict[str, int] = json.loads(answer.read())
    return said


def _blocks() -> Iterator[bytes]:
    while block := os.read(0, BLOCK):
        yield block


# --- out of the session ---


def _download(service: Target, session: str, remote: str, local: str, progress: "Progress") -> str:
    from ingle.client.transfer import Download

    if local == STREAM:
        return _print(service, session, remote)
    if local.endswith("/") or os.path.isdir(local):
        local = os.path.join(local, remote.rstrip("/").rpartition("/")[2] or session)
    download = Download(local)
    try:
        for block in progress.watch(_receive(service, session, "/archive", {"path": remote})):
            download.feed(block)
        done = download.finish()
    except OSError as error:
        raise Failure(f"{local} cannot be written: {error.strerror}") from None
    finally:
        download.close()
    return _summary(done.files, done.bytes, local, done.skipped)


def _print(service: Target, session: str, remote: str) -> str:
    """Write a file to standard output, or a folder as a tar stream."""
    from ingle.client.address import file_address

    blocks = _receive(service, session, "/archive", {"path": remote})
    if remote:
        below, query = file_address(remote)
        try:
            blocks = _receive(service, session, below, query or {})
            _write(next(blocks, b""))
        except errors.Conflict:
            blocks = _receive(service, session, "/archive", {"path": remote})
    for block in blocks:
        _write(block)
    return ""


def _receive(service: Target, session: str, below: str, query: "dict[str, str | int | float]") -> Iterator[bytes]:
    path = f"/v1/sessions/{session}{below}?{urlencode(query)}"
    with service.client.open("GET", path, timeout=PAUSE_SECONDS) as answer:
        while block := answer.read(BLOCK):
            yield block


def _write(data: bytes) -> None:
    if sys.stdout.isatty():
        echo(data, nl=False)
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


# --- texts ---


def _join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}" if folder.strip("/") else f"{folder[:1]}{name}"


def _summary(files: int, size: int, where: str, skipped: list[str]) -> str:
    from ingle.render.phrases import counted

    lines = [f"copied {counted(files, 'file')}, {rounded_size(size)}, to {where}"]
    return "\n".join([*lines, *(each if each.startswith("left out") else f"left out: {each}" for each in skipped)])


class Progress:
    """One line on standard error about the bytes so far, if that is a terminal."""

    def __init__(self, quiet: bool) -> None:
        self._shown = not quiet and sys.stderr.isatty()
        self._next = time.monotonic() + PROGRESS_SECONDS
        self._written = False

    def watch(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        size = 0
        for block in blocks:
            size += len(block)
            if self._shown and time.monotonic() >= self._next:
                self._next = time.monotonic() + PROGRESS_SECONDS
                self._written = True
                echo(f"\r{rounded_size(size):>12}", nl=False, err=True)
            yield block

    def clear(self) -> None:
        if self._written:
            echo("\r" + " " * 12 + "\r", nl=False, err=True)
