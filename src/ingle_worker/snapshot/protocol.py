"""The session's own part in being saved and loaded: it asks for a channel, and tells or takes everything over it."""

import os
import types
from collections.abc import Callable
from typing import Any

from ingle_worker.session import traceback_text
from ingle_worker.session.compiler import Compiled, Compiler
from ingle_worker.session.link import Link, WireLost
from ingle_worker.snapshot import load as load_module
from ingle_worker.snapshot import provenance, reduce_running, save
from ingle_worker.wire.messages import ChannelWanted, Load, Loaded, NotLoaded, Save, SaveFailed

MAX_FAILED = 10_000


class Keeping:
    def __init__(self, link: Link, main: types.ModuleType, compiler: Compiler, run: Callable[[Compiled], None]) -> None:
        self._link = link
        self._main = main
        self._compiler = compiler
        self._run = run
        self._around = save.Surroundings()

    def note_surroundings(self) -> None:
        """What is as it is now need not be saved, but for what a session begins with."""
        self._around = save.Surroundings()

    def begin(self, env: dict[str, str], cwd: str) -> None:
        """The session begins with this."""
        self._around.begin(env, cwd)

    def save(self, order: Save, running: list[Any]) -> None:
        """In a copy of the session, in which these threads ran: tell all, and go. Never returns."""
        code = 0
        try:
            fd = self._channel(order.ticket)
            reduce_running.begin(running)
            save.save(fd, self._main, self._around, self._compiler.flags)
        except WireLost:
            code = 1
        except BaseException as error:  # the border to the user's code, of which all may have run
            raised = traceback_text.bare(error)
            self._link.send(SaveFailed(order.ticket, f"{raised.name}: {raised.value}"[:1000]))
            code = 1
        os._exit(code)

    def load(self, order: Load) -> None:
        """Take a snapshot's content into this session."""
        fd = self._channel(order.ticket)
        try:
            summary = load_module.read_summary(order.data)
            loaded = load_module.load(fd, summary, self._main)
        except WireLost:
            raise
        except BaseException as error:  # the border to the user's code, of which all may have run
            raised = traceback_text.bare(error)
            self._link.send(Loaded(order.ticket, [], problem=f"{raised.name}: {raised.value}"[:1000]))
            return
        self._compiler.flags |= loaded.flags
        if order.rerun:
            self._run_again(summary, loaded)
        failed = [NotLoaded(**each) for each in loaded.failed[:MAX_FAILED]]
        self._link.send(Loaded(order.ticket, loaded.names, failed, loaded.notices))

    def _run_again(self, summary: dict[str, Any], loaded: load_module.Loaded) -> None:
        """Cells that made what could not be saved."""
        again = provenance.Again(vars(self._main), self._compiler, self._run)
        missing = {each["name"] for each in summary["skipped"] if each["made_by"]}
        for file in summary["makers"]:
            if file in loaded.sources:
                filename, code = loaded.sources[file]
                loaded.notices.append(again.make(file.strip("<>"), filename, code, missing))
        loaded.names += sorted(missing & vars(self._main).keys())

    def _channel(self, ticket: int) -> int:
        self._link.send(ChannelWanted(ticket))
        _, fds = self._link.receive_ends()
        if len(fds) != 1:
            for fd in fds:
                os.close(fd)
            raise OSError("the host gave no channel, or no descriptor is left")
        return fds[0]
