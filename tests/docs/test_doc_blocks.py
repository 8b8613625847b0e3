"""Every code block of the README and of the documentation does what the page shows."""

from __future__ import annotations

import ast
import builtins
import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import httpx
import pytest
from ruamel.yaml import YAML

from build_site import BrokenLink, adapted, copy_pages
from ingle.cli import main
from ingle.client import Client
from support.doc_blocks import PORT, Block, Page, Person, Program, blocks_of, matches
from support.processes import MARK

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
COMPARED = DOCS / "reference" / "cli.md"
"""Its blocks are compared with the output of `--help` by tests/unit/test_reference.py."""

PAGES = [
    ROOT / "README.md",
    *sorted(path for path in DOCS.rglob("*.md") if path != COMPARED and "```" in path.read_text("utf-8")),
]

RUN = ("console", "python")
PLAIN = ("text",)
"""Blocks that hold no code."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def make_person(folder: str) -> Person:
    return Person(Path(folder), {"INGLE_KEEP_ENV": MARK, MARK: os.environ[MARK], "INGLE_PRELOAD": ""})


@pytest.fixture(scope="module")
def served() -> Iterator[Person]:
    """A person whose `ingle serve` runs already, with its defaults. All pages that start none of their own share it."""
    with tempfile.TemporaryDirectory(prefix="ingle-ada-") as folder:
        Path(folder).chmod(0o755)
        person = make_person(folder)
        server = Program(["ingle", "serve"], person.home, person.env)
        server.output(until="stop")
        yield person
        assert server.stop() == 0


@pytest.fixture
def alone() -> Iterator[Person]:
    """A person without a running service, for pages that start their own."""
    with tempfile.TemporaryDirectory(prefix="ingle-ada-") as folder:
        Path(folder).chmod(0o755)
        yield make_person(folder)


def end_everything(person: Person) -> None:
    """End what a page has left in the shared service."""
    with Client(f"http://127.0.0.1:{person.port}", token_of(person)) as client:
        for session in client.sessions():
            client.session(session.session_id, keep=True).close()
        for snapshot in client.snapshots():
            client.delete_snapshot(snapshot.name)


def level_of(person: Person) -> str:
    """Return the isolation level that the person's service has on this machine."""
    answer = httpx.get(f"http://127.0.0.1:{person.port}/healthz").raise_for_status()
    return str(answer.json()["isolation"])


def token_of(person: Person) -> str:
    return (person.home / ".local/share/ingle/token").read_text().strip()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_page_holds_when_read_from_top_to_bottom(path: Path, request: pytest.FixtureRequest) -> None:
    blocks = [block for block in blocks_of(path.read_text("utf-8")) if block.kind in RUN and block.reason is None]
    if not blocks:
        return
    shared = not any(block.in_background for block in blocks)
    person: Person = request.getfixturevalue("served" if shared else "alone")
    page = Page(person)
    try:
        for block in blocks:
            if block.in_sandbox and level_of(person) != "sandbox":
                continue
            try:
                page.run(block)
            except AssertionError as failed:
                raise AssertionError(f"{name_of(path)}, line {block.line}:\n{failed}") from None
    finally:
        page.close()
        if shared:
            end_everything(person)


def all_blocks() -> list[tuple[str, Block]]:
    return [(name_of(path), block) for path in PAGES for block in blocks_of(path.read_text("utf-8"))]


def test_every_block_is_run_or_says_why_not() -> None:
    """A block is run, or has a reason, or is data that a parser reads."""
    odd = [
        f"{page}, line {block.line}: {block.kind or 'no language'}"
        for page, block in all_blocks()
        if block.kind not in (*RUN, *PLAIN, *PARSERS)
    ]
    assert odd == []
    assert [f"{page}, line {block.line}" for page, block in all_blocks() if block.reason == ""] == []


def unbound_names(code: str) -> list[str]:
    """Return the names that code uses and neither makes nor imports."""
    bound, used = set(dir(builtins)), set()
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                bound.add(name)
            case ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                bound.update((each.asname or each.name).partition(".")[0] for each in names)
    return sorted(used - bound)


def test_every_python_block_stands_alone() -> None:
    """A reader who copies one block, and not those before it, must not meet a NameError."""
    assert unbound_names("import a.b\ndef f(x): return [x, y, a, z := 1]\nprint(f)") == ["y"]
    blocks = [(f"{page}, line {block.line}", block) for page, block in all_blocks() if block.kind == "python"]
    assert {place: names for place, block in blocks if (names := unbound_names(block.text))} == {}


def test_every_page_of_the_menu_exists_and_every_page_is_in_the_menu(tmp_path: Path) -> None:
    copy_pages(tmp_path)
    menu = set(re.findall(r'"([\w./-]+\.md)"', (DOCS / "zensical.toml").read_text("utf-8")))
    assert menu == {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")}


@pytest.mark.parametrize("link", ["no-such-page.md", "../src/ingle/events.py"])
def test_a_link_to_what_is_not_in_the_site_is_refused(link: str) -> None:
    with pytest.raises(BrokenLink, match=re.escape(f"docs/tutorial.md links to {link}")):
        adapted(f"[there]({link})", "docs/tutorial.md")


def test_links_between_the_root_and_the_docs_hold_in_the_site() -> None:
    assert adapted("[a](../SECURITY.md#x) `b`\n```\n[c](d.md)\n```\n", "docs/tutorial.md") == (
        "[a](explanation/security.md#x) `b`\n```\n[c](d.md)\n```\n"
    )
    assert adapted("![a](docs/pictures/overview.svg)", "README.md") == "![a](pictures/overview.svg)"


def check_systemd(text: str, folder: Path) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    assert parser.sections()
    tool = shutil.which("systemd-analyze")
    if tool is None or "Service" not in parser:
        return
    unit = folder / "ingle.service"
    # The program of the unit is not installed here.
    unit.write_text(re.sub(r"^(ExecStart=)\S+", r"\1/bin/true", text, flags=re.MULTILINE))
    ended = subprocess.run([tool, "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60)
    assert "ingle.service" not in ended.stderr, ended.stderr


def check_nginx(text: str, folder: Path) -> None:
    tool = shutil.which("nginx")
    if tool is None:
        lines = [line.partition("#")[0].strip() for line in text.splitlines()]
        assert [line for line in lines if line and line[-1] not in "{};"] == []
        assert text.count("{") == text.count("}")
        return
    config = folder / "nginx.conf"
    config.write_text("events {}\nhttp {\n" + re.sub(r".*ssl_certificate.*\n", "", text) + "}\n")
    subprocess.run([tool, "-t", "-c", str(config)], check=True, capture_output=True, timeout=60)


def check_caddy(text: str, folder: Path) -> None:
    assert text.count("{") == text.count("}")
    if tool := shutil.which("caddy"):
        config = folder / "Caddyfile"
        config.write_text(text)
        command = [tool, "adapt", "--adapter", "caddyfile", "--config", str(config)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)


PARSERS: dict[str, Callable[[str, Path], object]] = {
    "json": lambda text, folder: json.loads(text),
    "toml": lambda text, folder: tomllib.loads(text),
    "yaml": lambda text, folder: YAML(typ="safe").load(text),
    "ini": check_systemd,
    "nginx": check_nginx,
    "caddyfile": check_caddy,
}


def test_data_in_pages_can_be_parsed(tmp_path: Path) -> None:
    checked = 0
    for page, block in all_blocks():
        if block.kind in PARSERS:
            try:
                PARSERS[block.kind](block.text, tmp_path)
            except Exception as problem:
                raise AssertionError(f"{page}, line {block.line}: {problem}") from problem
            checked += 1
    assert checked


def ingle_commands(command: str) -> list[list[str]]:
    """Return the arguments of each `ingle` in a line of shell."""
    found: list[list[str]] = []
    begins, inside = True, False
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    for word in lexer:
        if set(word) <= set("();<>|&"):
            begins, inside = True, False
        elif inside:
            found[-1].append(word)
        elif begins and word.rpartition("/")[2] == "ingle":
            found.append([])
            inside = True
        else:
            begins = begins and (word == "sudo" or "=" in word)
    return found


def check_arguments(words: list[str]) -> None:
    """Parse the arguments of a command without running it."""
    command: click.Command = main
    context = None
    name = "ingle"
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        context = click.Context(command, info_name=name, parent=context)
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no command {words[0]!r}"
        name, command, words = words[0], found, words[1:]
    try:
        command.make_context(name, list(words), parent=context)
    except click.exceptions.Exit:
        pass


def test_commands_that_are_not_run_have_arguments_that_exist() -> None:
    for page, block in all_blocks():
        if block.kind == "console" and block.reason is not None:
            for command, _ in block.steps():
                for words in ingle_commands(command):
                    try:
                        check_arguments(words)
                    except (click.ClickException, AssertionError) as problem:
                        raise AssertionError(f"{page}, line {block.line}: {command}: {problem}") from None


def needs_service(command: str) -> bool:
    """Return whether a line of shell asks a service that must run already."""
    if f"//127.0.0.1:{PORT}" in command:
        return True
    for words in ingle_commands(command):
        found = main.get_command(click.Context(main), words[0]) if words else None
        takes_url = found is not None and any(each.name == "choice" or "--url" in each.opts for each in found.params)
        asks = takes_url and words[0] != "ps" and "--server" not in words
        if asks and (words[0] not in ("run", "sh") or {"-s", "--session"} & set(words)):
            return True
    return False


STARTS = re.compile(r"`ingle serve`|^\$ ingle serve|^\$ ingle cluster up|^ExecStart=", re.MULTILINE)


@pytest.mark.parametrize("path", sorted((DOCS / "how-to").glob("*.md")), ids=lambda path: path.stem)
def test_a_how_to_page_says_first_that_it_needs_a_service(path: Path) -> None:
    text = path.read_text("utf-8")
    asking = [
        block.line
        for block in blocks_of(text)
        if block.kind == "console" and any(needs_service(command) for command, _ in block.steps())
    ]
    before = "\n".join(text.splitlines()[: min(asking, default=0)])
    assert not asking or STARTS.search(before), f"line {asking[0]} needs a service: say before that `ingle serve` runs"


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ("", "", True),
        ("", "x\n", False),
        ("42", "42\n", True),
        ("42", "43\n", False),
        ("a … c", "a b c\n", True),
        ("a … c", "a b\nc\n", False),
        ("a\n…\nc", "a\nb\nb\nc\n", True),
        ("a\n…\nc", "a\nc\n", True),
        ("a\n…", "a\n", True),
        ("a\n…\nc", "b\nc\n", False),
        ("1.5", "1x5\n", False),
    ],
)
def test_an_ellipsis_stands_for_what_varies_and_for_nothing_else(expected: str, actual: str, same: bool) -> None:
    assert matches(expected, actual) is same


def test_a_block_that_shows_something_else_is_found(served: Person) -> None:
    page = Page(served)
    try:
        page.run(Block("console", "$ echo one\none\n", 1))
        with pytest.raises(AssertionError, match="it printed:\n    two"):
            page.run(Block("console", "$ echo two\none\n", 1))
        page.run(Block("python", "x = 21\n", 1))
        page.run(Block("python", "print(x * 2)\n", 1, output="42\n"))
        with pytest.raises(AssertionError, match="ZeroDivisionError"):
            page.run(Block("python", "x / 0\n", 1))
    finally:
        page.close()


def test_an_option_that_does_not_exist_is_found() -> None:
    assert ingle_commands("systemctl enable ingle") == []
    found = ingle_commands("export A=1; B=2 sudo /opt/ingle/bin/ingle serve --port 1 | cat; ingle ps  # all")
    assert found == [["serve", "--port", "1"], ["ps"]]
    check_arguments(["serve", "--port", "1"])
    with pytest.raises(click.ClickException, match="No such option"):
        check_arguments(["serve", "--prot", "1"])
    with pytest.raises(AssertionError, match="there is no command 'sevre'"):
        check_arguments(["sevre"])
