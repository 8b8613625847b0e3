"""Builds the documentation as a site: `make docs`, or `python tools/build_site.py`.

The pages are readable in the repository as they are. The site needs them in one folder, so this copies `docs` and the
pages of the root there and adapts the links between them. The build is strict: a link that leads nowhere fails it.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "docs"
PAGES = BUILD / "pages"
SITE = BUILD / "site"

ROOT_PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "explanation/security.md",
    "ARCHITECTURE.md": "contributing/architecture.md",
    "CONTRIBUTING.md": "contributing/index.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the root, and their places in the site."""

_FENCE = re.compile(r"^(```.*?^```)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r'(\]\(|src=")([^)"\s]+)([)"])')
_ELSEWHERE = re.compile(r"[a-z]+:|#")
_FROM_ELSEWHERE = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")


class BrokenLink(Exception):
    """A link to a file that is not part of the site."""


def place_of(source: str) -> str:
    """Return where a file of the repository stands in the site."""
    if source in ROOT_PAGES:
        return ROOT_PAGES[source]
    if not source.startswith("docs/") or not (ROOT / source).exists():
        raise BrokenLink(source)
    return source.removeprefix("docs/")


def adapted(text: str, source: str) -> str:
    """Return the text of a page with links that hold in the site. Blocks of code stay as they are."""
    here = posixpath.dirname(place_of(source))

    def link(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        if _ELSEWHERE.match(target):
            return found[0]
        path, hash_sign, anchor = target.partition("#")
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        try:
            place = place_of(wanted)
        except BrokenLink:
            raise BrokenLink(
                f"{source} links to {target}, which is no part of the site; correct the link, or write the path as code"
            ) from None
        return f"{before}{posixpath.relpath(place, here or '.')}{hash_sign}{anchor}{after}"

    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


def copy_pages(pages: Path = PAGES) -> None:
    """Copy all pages into a folder, with adapted links."""
    for path in (ROOT / "docs").rglob("*"):
        source = path.relative_to(ROOT).as_posix()
        if path.is_file() and path.name != "zensical.toml":
            _copy(path, source, pages)
    for source in ROOT_PAGES:
        _copy(ROOT / source, source, pages)


def _copy(path: Path, source: str, pages: Path) -> None:
    target = pages / place_of(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".md":
        target.write_text(adapted(path.read_text("utf-8"), source), "utf-8")
    else:
        shutil.copy(path, target)


def assets_from_elsewhere() -> list[str]:
    """Return elements of the site that a browser would load from another host."""
    return [
        f"{page.relative_to(SITE)}: {element}"
        for page in SITE.rglob("*.html")
        for element in _FROM_ELSEWHERE.findall(page.read_text("utf-8"))
        if 'rel="canonical"' not in element
    ]


def main() -> int:
    shutil.rmtree(BUILD, ignore_errors=True)
    try:
        copy_pages()
    except BrokenLink as problem:
        print(problem, file=sys.stderr)
        return 1
    shutil.copy(ROOT / "docs" / "zensical.toml", BUILD)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "zensical.toml"]
    ended = subprocess.run(command, cwd=BUILD, check=False, capture_output=True, text=True)
    if ended.returncode != 0:
        # A traceback after the list of broken links says nothing more.
        print((ended.stdout + ended.stderr).partition("Traceback (most recent call last)")[0], file=sys.stderr)
        return 1
    if found := assets_from_elsewhere():
        print("The site must load nothing from other hosts:", *found, sep="\n", file=sys.stderr)
        return 1
    print(f"the site is in {SITE.relative_to(ROOT)}; open index.html, or serve the folder")
    return 0


if __name__ == "__main__":
    sys.exit(main())
