"""Code blocks of the documentation, and a place in which to run them.

A page runs from top to bottom, in one shell and one Python program, in the folder `~/project` of a person called ada.
CONTRIBUTING.md says how to write blocks.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue

COMMAND_SECONDS = 60.0

PORT = "8377"
"""Port in the pages. Tests use a free one, and read the one for the other."""

PERSON = "/home/ada"
"""Home folder in the pages."""

END = "---- end of block 6f2c ----"

_FENCE = re.compile(
    r"^(?:<!-- (?P<note>[^\n]*?) -->\n+)?```(?P<kind>[a-z]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)

PYTHON = f"""
import json, sys, traceback
names = {{"__name__": "__main__"}}
for line in sys.stdin:
    try:
        exec(compile(json.loads(line), "<block>", "exec"), names)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
    print({END!r}, flush=True)
"""


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    line: int
    note: str = ""
    output: str | None = None
    """Text of the block `output` that follows a Python block."""

    @property
    def reason(self) -> str | None:
        """Why the block is not run, if it is not."""
        return self.note.removeprefix("not run: ") if self.note.startswith("not run: ") else None

    @property
    def in_sandbox(self) -> bool:
        """Return whether the block shows what only a sandbox does."""
        return self.note == "in a sandbox"

    @property
    def in_background(self) -> bool:
        return self.note == "in the background"

    def steps(self) -> list[tuple[str, str]]:
        """Return the commands of a console block, each with its expected output."""
        found: list[tuple[list[str], list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append(([line[2:]], []))
            elif line.startswith("> ") and found and not found[-1][1]:
                found[-1][0].append(line[2:])
            else:
                assert found, f"a console block begins with `$ `, not with {line!r}"
                found[-1][1].append(line)
        return [("\n".join(command), "\n".join(output)) for command, output in found]


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page in order. A block `output` is part of the Python block before it."""
    found: list[Block] = []
    for match in _FENCE.finditer(page):
        line = page.count("\n", 0, match.start("kind")) + 1
        block = Block(match["kind"], match["text"], line, match["note"] or "")
        if block.kind == "output" and found and found[-1].kind == "python":
            last = found.pop()
            block = Block("python", last.text, last.line, last.note, output=block.text)
        found.append(block)
    return found


def matches(expected: str, actual: str) -> bool:
    """Compare output with what a page shows. `…` stands for any text of a line, alone on a line for any lines."""
    parts = []
    for line in expected.rstrip().splitlines():
        if line.strip() == "…":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*?".join(re.escape(piece) for piece in line.rstrip().split("…")) + r"[ \t]*\n")
    return re.fullmatch("".join(parts), actual.rstrip() + "\n" if actual.strip() else "") is not None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Program:
    """A process that takes blocks on its standard input and ends the output of each with a line."""

    def __init__(self, command: list[str], folder: Path, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: Queue[str | None] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or []:
            self._lines.put(line)
        self._lines.put(None)

    def send(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def output(self, until: str = END) -> str:
        """Return all lines up to the one that has this text, or up to the end of the program."""
        deadline = time.monotonic() + COMMAND_SECONDS
        found = ""
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise AssertionError(f"no end after {COMMAND_SECONDS} s of:\n{found}") from None
            if line is None:
                return found
            before, mark, _ = line.partition(until)
            found += before
            if mark:
                return found if until == END else found + mark + line.partition(until)[2]

    def stop(self) -> int:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(COMMAND_SECONDS)
        finally:
            self._reader.join(COMMAND_SECONDS)
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()


class Person:
    """Home folder, environment and port of a person who types the blocks of pages."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.home = folder / "ada"
        self.home.mkdir(mode=0o755)
        self.port = free_port()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("INGLE_", "XDG_"))}
        self.env = {**kept, **env, "HOME": str(self.home), "PATH": path, "INGLE_PORT": str(self.port), "COLUMNS": "100"}

    def typed(self, text: str) -> str:
        """Return a command with this person's home folder and port."""
        return text.replace(PORT, str(self.port)).replace(PERSON, str(self.home))

    def shown(self, text: str) -> str:
        """Return output as a page would show it."""
        return text.replace(str(self.port), PORT).replace(str(self.home), PERSON)


class Page:
    """Runs the blocks of one page."""

    def __init__(self, person: Person) -> None:
        self._person = person
        self.folder = person.home / "project"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self._programs: list[Program] = []
        self._shell: Program | None = None
        self._python: Program | None = None

    def close(self) -> None:
        for program in reversed(self._programs):
            program.stop()

    def _start(self, *command: str) -> Program:
        self._programs.append(Program(list(command), self.folder, self._person.env))
        return self._programs[-1]

    def run(self, block: Block) -> None:
        """Run a block and compare its output with what the page shows."""
        if block.kind == "python":
            actual = self._run_python(block.text)
            assert matches(block.output or "", actual), difference(block.text, block.output or "", actual)
        elif block.in_background:
            self._run_in_background(block)
        else:
            for command, expected in block.steps():
                actual = self._run_command(command)
                assert matches(expected, actual), difference(f"$ {command}", expected, actual)

    def _run_python(self, code: str) -> str:
        if self._python is None:
            self._python = self._start(sys.executable, "-u", "-c", PYTHON)
        self._python.send(json.dumps(self._person.typed(code)) + "\n")
        return self._person.shown(self._python.output())

    def _run_command(self, command: str) -> str:
        if self._shell is None:
            self._shell = self._start("bash", "--noprofile", "--norc")
        script = self._person.home / ".block"
        script.write_text(self._person.typed(command) + "\n")
        self._shell.send(f". {script} </dev/null 2>&1; echo '{END}'\n")
        return self._person.shown(self._shell.output())

    def _run_in_background(self, block: Block) -> None:
        [(command, expected)] = block.steps()
        program = self._start("bash", "--noprofile", "--norc", "-c", f"exec {self._person.typed(command)}")
        last = expected.rstrip().splitlines()[-1].replace("…", "").strip()
        actual = self._person.shown(program.output(until=self._person.typed(last)))
        assert matches(expected, actual), difference(f"$ {command}", expected, actual)


def difference(what: str, expected: str, actual: str) -> str:
    def indented(text: str) -> str:
        return textwrap.indent(text.rstrip() or "(nothing)", "    ")

    return f"\n{what}\n\nthe page shows:\n{indented(expected)}\n\nit printed:\n{indented(actual)}\n"
