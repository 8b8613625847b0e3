"""`ingle top`: a live table of sessions."""

import contextlib
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import Any

import click

from ingle.cli.commands.sessions import age, laid_out, look, memory_size, short_folder, with_trial
from ingle.cli.echo import echo, echo_json, order
from ingle.cli.services import LOOK_SECONDS, Choice, find_targets, service_options
from ingle.errors import IngleError

ORDER = ("waiting_for_input", "waiting_for_approval", "running", "starting", "idle", "hibernated")
"""States in the order of the table: those that need a person come first."""

STATES = {"waiting_for_input": "waits for you", "waiting_for_approval": "waits for you"}

HOME_AND_CLEAR, HIDE, SHOW = "\x1b[H\x1b[J", "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


@click.command(epilog="Example: ingle top --interval 5")
@service_options
@click.option("--interval", type=click.FloatRange(0.5), default=2.0, show_default=True, help="Seconds between looks.")
@click.option("--once", is_flag=True, help="Print the table once. Default where the output is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, once.")
def top(choice: Choice, interval: float, once: bool, as_json: bool) -> None:
    """Show a live table of sessions with their use of CPU and memory.

    Sessions that wait for a person come first, then those that run. q or Ctrl-C ends it.
    """
    table = Table(choice)
    if as_json:
        echo_json({"sessions": table.look()})
    elif once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        table.look()
        for line in table.lines(time.time()):
            echo(line)
    else:
        with contextlib.suppress(KeyboardInterrupt), _full_screen():
            while True:
                table.look()
                columns, rows = shutil.get_terminal_size()
                lines = [line[:columns] for line in table.lines(time.time())[: rows - 1]]
                order(HOME_AND_CLEAR)
                for line in lines:
                    echo(f"{line}\r")
                if _is_ended(interval):
                    return


class Table:
    """Sessions of the chosen services, and what they have used since the last look."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._before: dict[tuple[str, str], tuple[float, float]] = {}
        """By server and session: time and CPU seconds at the last look."""
        self._sessions: list[dict[str, Any]] = []
        self._machine = ""

    def look(self) -> list[dict[str, Any]]:
        """Look at all services. Return their sessions, each with `cpus`: how many it used since the last look."""
        now = time.monotonic()
        found: dict[tuple[str, str], tuple[float, float]] = {}
        sessions = []
        self._machine = ""
        for target in find_targets(self._choice):
            for session in look(target)["sessions"]:
                key = str(target.address), session["session_id"]
                used = session["cpu_seconds"] or 0.0
                found[key] = now, used
                at, before = self._before.get(key, (0.0, used))
                session["cpus"] = round(max(0.0, used - before) / (now - at), 2) if now > at else 0.0
                sessions.append(session)
            with contextlib.suppress(IngleError):
                self._machine = self._machine or _machine(target.ask("GET", "/v1/usage", timeout=LOOK_SECONDS))
        self._before = found
        self._sessions = sorted(sessions, key=_rank)
        return self._sessions

    def lines(self, now: float) -> list[str]:
        """Return the table as lines."""
        from ingle.render.phrases import counted

        rows: list[tuple[str, ...]] = [("SESSION", "STATE", "CPU", "MEMORY", "LIMIT", "CELLS", "USED", "FOLDER")]
        for each in self._sessions:
            limit = each["limits"].get("memory")
            last = each["last_executed"] or each["created_at"]
            rows.append(
                (
                    each["session_id"],
                    with_trial(STATES.get(each["state"], each["state"]), each),
                    f"{each['cpus'] * 100:.0f} %",
                    memory_size(each["memory"]),
                    "-" if limit is None else memory_size(limit),
                    str(each["execution_count"]),
                    f"{age(now - last)} ago",
                    short_folder(each["cwd"]),
                )
            )
        waiting = sum(each["state"] in STATES for each in self._sessions)
        head = counted(len(self._sessions), "session") + (f", {waiting} of them waiting for you" if waiting else "")
        return [head + self._machine, "", *laid_out(rows)]


def _rank(session: dict[str, Any]) -> tuple[int, float, str]:
    state = session["state"]
    return ORDER.index(state) if state in ORDER else len(ORDER), -session["cpus"], session["session_id"]


def _machine(usage: dict[str, Any]) -> str:
    used = usage["memory_total"] - usage["memory_available"]
    cpus = usage["samples"][-1]["cpus"] if usage["samples"] else 0.0
    return f"; machine: {cpus:.1f} of {usage['cpus']} CPUs, {memory_size(used)} of {memory_size(usage['memory_total'])}"


@contextlib.contextmanager
def _full_screen() -> Iterator[None]:
    """Use the terminal's second screen, and read keys as they are pressed."""
    before = termios.tcgetattr(sys.stdin)
    order(HIDE)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        order(SHOW)


def _is_ended(seconds: float) -> bool:
    """Wait so long for a key. Return whether `q` was pressed."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and sys.stdin.read(1) in ("q", "")
