"""The session's part of saving and loading: it requests a channel and transfers everything over it."""

import json
import os
import types
from collections.abc import Callable
from typing import Any

from ingle_worker.session import traceback_text
from ingle_worker.session.compiler import Compiled, Compiler
from ingle_worker.session.link import Link, WireLost
from ingle_worker.snapshot import chunks, fingerprints, own_folder, provenance, reduce_running, save
from ingle_worker.snapshot import load as load_module
from ingle_worker.wire.messages import ChannelWanted, Compare, Load, Loaded, NotLoaded, Save, SaveFailed

MAX_FAILED = 10_000


class SnapshotRequests:
    def __init__(self, link: Link, main: types.ModuleType, compiler: Compiler, run: Callable[[Compiled], None]) -> None:
        self._link = link
        self._main = main
        self._compiler = compiler
        self._run = run
        self._environment = save.Environment()

    def record_environment(self) -> None:
        """Record the current environment. Only differences from it are saved."""
        self._environment = save.Environment()

    def begin(self, env: dict[str, str], cwd: str, own: str) -> None:
        """Record the environment variables and the folder with which the session starts, and its own folder."""
        self._environment.begin(env, cwd)
        own_folder.start(own)

    def save(self, order: Save, running: list[Any]) -> None:
        """Save the session and exit. Runs in a copy; `running` are the threads of the original. Never returns."""

        def send(fd: int) -> None:
            offers = chunks.Offers(fd, hashed=order.hashed, silent=order.only_list)
            save.save(offers, self._main, self._environment, self._compiler.flags, order.call_seconds)

        self._send(order.ticket, running, send)

    def compare(self, order: Compare, running: list[Any]) -> None:
        """Send the variables with hashes of their saved bytes, and exit. Runs in a copy. Never returns."""
        self._send(order.ticket, running, lambda fd: fingerprints.send(fd, self._main, order.seconds, order.names))

    def _send(self, ticket: int, running: list[Any], send: Callable[[int], None]) -> None:
        code = 0
        try:
            fd = self._request_channel(ticket)
            reduce_running.begin(running)
            send(fd)
        except WireLost:
            code = 1
        except BaseException as error:  # user code may have run
            raised = traceback_text.bare(error)
            self._link.send(SaveFailed(ticket, f"{raised.name}: {raised.value}"[:1000]))
            code = 1
        os._exit(code)

    def load(self, order: Load) -> None:
        """Load a snapshot into this session."""
        fd = self._request_channel(order.ticket)
        try:
            summary: dict[str, Any] = json.loads(order.data)
            loaded = load_module.load(fd, summary, self._main, random=order.random)
        except WireLost:
            raise
        except BaseException as error:  # user code may have run
            raised = traceback_text.bare(error)
            self._link.send(Loaded(order.ticket, [], problem=f"{raised.name}: {raised.value}"[:1000]))
            return
        self._compiler.flags |= loaded.flags
        if order.rerun:
            self._rerun(summary, loaded)
        failed = [NotLoaded(**each) for each in loaded.failed[:MAX_FAILED]]
        self._link.send(Loaded(order.ticket, loaded.names, failed, loaded.notices))

    def _rerun(self, summary: dict[str, Any], loaded: load_module.Loaded) -> None:
        """Run the cells again whose values could not be saved."""
        rerun = provenance.Rerun(vars(self._main), self._compiler, self._run)
        missing = {each["name"] for each in summary["skipped"] if each["made_by"]}
        for file in summary["makers"]:
            if file in loaded.sources:
                filename, code = loaded.sources[file]
                loaded.notices.append(rerun.run(file.strip("<>"), filename, code, missing))
        loaded.names += sorted(missing & vars(self._main).keys())

    def _request_channel(self, ticket: int) -> int:
        self._link.send(ChannelWanted(ticket))
        _, fds = self._link.receive_ends()
        if len(fds) != 1:
            for fd in fds:
                os.close(fd)
            raise OSError("the host gave no channel, or no descriptor is left")
        return fds[0]
