"""pip's package index on this machine, and what a session needs to install from it.

It is read from pip's files and variables as pip reads them, and from uv's variables. Passwords in addresses are
removed, because sessions would see them.
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
"""Hosts with an index's files, where they differ from the index."""

SECTIONS = ("global", "install")
OPTIONS = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "cert", "default-timeout")
VISIBLE_FOLDERS = ("/etc/ssl/", "/etc/pki/", "/usr/")
"""Folders whose certificate files sessions can see; other certificate files are left out."""

UV = ("UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX")
PORTS = {"http": 80, "https": 443}
LINK = re.compile(r"""href=["']([^"'#]+)""")
MAX_PAGE_CHARS = 100_000
"""Characters of a page to read: its first link shows where the files are."""


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackageIndex:
    hosts: tuple[Entry, ...] = ()
    folders: tuple[str, ...] = ()
    """Local folders and files that the index consists of."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that configure pip and uv in a session."""
    urls: tuple[str, ...] = ()
    """Addresses below which each package has a page, without passwords."""


def find(
    environ: Mapping[str, str] | None = None,
    prefix: str | None = None,
    root: Path = Path("/"),
    written: Callable[[str], bool] = lambda folder: False,
) -> PackageIndex:
    """Find the package index. Blocks.

    `prefix` belongs to the sessions' interpreter. `written` returns whether sessions write a folder.
    """
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
    indexes = [] if urls[:1] != [PYPI] else [PYPI]
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        indexes += [] if "no-index" in given else environment.get(name, "").split()
    hosts: dict[Entry, None] = {}
    for url in urls:
        _add(url, hosts, folders, written)
    return PackageIndex(tuple(hosts), tuple(dict.fromkeys(folders)), environment, tuple(indexes))


def _add(url: str, hosts: dict[Entry, None], folders: list[str], written: Callable[[str], bool]) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:
        return
    if parts.scheme == "file":
        folder = unquote(parts.path).rstrip("/")
        # Files that a session could have written grant nothing.
        folders += [folder, *([] if written(folder) else _beside(folder))]
    elif port is not None and parts.hostname:
        # The operator's own index often has a private address; a public one does not.
        near = parts.hostname not in FILES
        for host in (parts.hostname, *FILES.get(parts.hostname, ())):
            try:
                hosts[read_entry(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", near=near)] = None
            except BadHost:
                continue


def _beside(folder: str) -> list[str]:
    """Return the folder with the files of an index on disk, often next to it (simple/, packages/)."""
    try:
        # An index may have thousands of pages, and each start of a service looks for the first.
        pages = (Path(folder, name, "index.html") for name in sorted(os.listdir(folder)))
        page = next(page for page in pages if page.exists())
        links = LINK.findall(page.read_text("utf-8", "replace")[:MAX_PAGE_CHARS])
    except (OSError, StopIteration):
        return []
    for link in links:
        file = os.path.normpath(page.parent / unquote(urlsplit(link).path))
        around = os.path.dirname(folder)
        if "://" not in link and file.startswith(around + "/") and not file.startswith(folder + "/"):
            return [os.path.join(around, os.path.relpath(file, around).split("/")[0])]
    return []


def _bare(url: str) -> str:
    """Return the URL without user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _is_written(file: Path, written: Callable[[str], bool]) -> bool:
    """Return whether sessions can write the file or a link to it; such a file grants nothing."""
    path = os.path.abspath(file)
    if not any(written(os.path.dirname(each)) for each in (path, os.path.realpath(path))):
        return False
    if os.path.exists(path):
        logger.warning("%s is ignored: sessions can write it, and it decides which package index they may reach", path)
    return True


def _options(environ: Mapping[str, str], files: list[Path]) -> dict[str, str]:
    """Return pip's options in force: later files win, and the environment wins over all files."""
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
    if not given.get("cert", VISIBLE_FOLDERS[0]).startswith(VISIBLE_FOLDERS):
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
