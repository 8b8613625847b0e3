"""The package index that pip is configured with on this machine: what a session needs to install from it.

Read from pip's own files and variables, as pip reads them, and from uv's variables. A password in an address is not
handed on: sessions would see it.
"""

import configparser
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from ingle.isolation.egress.allow_list import BadHost, Entry, read_entry

PYPI = "https://pypi.org/simple"
FILES = {"pypi.org": ("files.pythonhosted.org",), "test.pypi.org": ("test-files.pythonhosted.org",)}
"""Where an index has its files, when not beside itself."""

SECTIONS = ("global", "install")
OPTIONS = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "cert", "default-timeout")
SEEN = ("/etc/ssl/", "/etc/pki/", "/usr/")
"""Where a file of certificates lies that sessions see anyway; elsewhere it is left out."""

UV = ("UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX")
PORTS = {"http": 80, "https": 443}
LINK = re.compile(r"""href=["']([^"'#]+)""")
PAGE = 100_000
"""Characters of a page that are looked at: its first link tells where the files lie."""


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackageIndex:
    hosts: tuple[Entry, ...] = ()
    folders: tuple[str, ...] = ()
    """Folders and files of this machine that it is made of, in part or as a whole."""
    environment: dict[str, str] = field(default_factory=dict)
    """How pip and uv in a session are told of it."""


def find(
    environ: Mapping[str, str] | None = None,
    prefix: str | None = None,
    root: Path = Path("/"),
    written: Callable[[str], bool] = lambda folder: False,
) -> PackageIndex:
    """`prefix` is that of the sessions' interpreter, `written` tells which folders sessions write. Blocks."""
    environ = os.environ if environ is None else environ
    given = _options(environ, [file for file in _files(environ, prefix, root) if not _is_written(file, written)])
    variables = {f"PIP_{name.upper().replace('-', '_')}": value for name, value in given.items()}
    variables |= {name: environ[name] for name in UV if environ.get(name)}
    environment: dict[str, str] = {}
    urls: list[str] = [] if "index-url" in given or "no-index" in given else [PYPI]
    folders: list[str] = []
    for name, value in variables.items():
        kept = []
        for word in value.split():
            name_part, _, url = word.rpartition("=") if name.startswith("UV_") else ("", "", word)
            if "://" in url:
                urls.append(url)
                kept.append(f"{name_part}={_bare(url)}" if name_part else _bare(url))
            else:
                if os.path.isabs(url) and name != "PIP_CERT":
                    folders.append(url)
                kept.append(word)
        environment[name] = " ".join(kept)
    hosts: dict[Entry, None] = {}
    for url in urls:
        _add(url, hosts, folders, written)
    return PackageIndex(tuple(hosts), tuple(dict.fromkeys(folders)), environment)


def _add(url: str, hosts: dict[Entry, None], folders: list[str], written: Callable[[str], bool]) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:
        return
    if parts.scheme == "file":
        folder = unquote(parts.path).rstrip("/")
        # What a session could have written there grants nothing.
        folders += [folder, *([] if written(folder) else _beside(folder))]
    elif port is not None and parts.hostname:
        # One of the operator's own is often near; one that all the world uses is not.
        near = parts.hostname not in FILES
        for host in (parts.hostname, *FILES.get(parts.hostname, ())):
            try:
                hosts[read_entry(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", near=near)] = None
            except BadHost:
                continue


def _beside(folder: str) -> list[str]:
    """Where the pages of an index on the disk have their files: often in a folder next to it (simple/, packages/)."""
    for page in sorted(Path(folder).glob("*/index.html"))[:1]:
        try:
            links = LINK.findall(page.read_text("utf-8", "replace")[:PAGE])
        except OSError:
            continue
        for link in links:
            file = os.path.normpath(page.parent / unquote(urlsplit(link).path))
            around = os.path.dirname(folder)
            if "://" not in link and file.startswith(around + "/") and not file.startswith(folder + "/"):
                return [os.path.join(around, os.path.relpath(file, around).split("/")[0])]
    return []


def _bare(url: str) -> str:
    """Without user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _is_written(file: Path, written: Callable[[str], bool]) -> bool:
    """By sessions, or a link to it: then it grants nothing."""
    path = os.path.abspath(file)
    if not any(written(os.path.dirname(each)) for each in (path, os.path.realpath(path))):
        return False
    if os.path.exists(path):
        logger.warning("%s is not read: sessions can write it, and it says which package index they may reach", path)
    return True


def _options(environ: Mapping[str, str], files: list[Path]) -> dict[str, str]:
    """pip's options in force: of its files the later ones win, and the environment over all."""
    given: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (OSError, configparser.Error, UnicodeDecodeError):
            continue
        for section in SECTIONS:
            for name in OPTIONS:
                if parser.has_option(section, name) and parser.get(section, name).strip():
                    given[name] = " ".join(parser.get(section, name).split())
    for name in OPTIONS:
        value = environ.get(f"PIP_{name.upper().replace('-', '_')}")
        if value:
            given[name] = value
    if not given.get("cert", SEEN[0]).startswith(SEEN):
        del given["cert"]
    return given


def _files(environ: Mapping[str, str], prefix: str | None, root: Path) -> list[Path]:
    own = environ.get("PIP_CONFIG_FILE")
    if own == os.devnull:
        return []
    home = Path(environ.get("HOME", "/"))
    configs = environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")
    files = [root / each.lstrip("/") / "pip/pip.conf" for each in reversed(configs) if each]
    files.append(root / "etc/pip.conf")
    files += [home / ".pip/pip.conf", Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"]
    if prefix is not None:
        files.append(Path(prefix) / "pip.conf")
    if own:
        files.append(Path(own))
    return files
