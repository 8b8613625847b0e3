"""The service: the verbs that every API offers, with the same names, defaults and checks.

The service holds no session and knows no process; it asks a node. A service acts for one caller, by default the owner
of the server; `acting_for` returns the same service for another caller.
"""

import os
from dataclasses import replace
from pathlib import Path

from ingle import errors
from ingle.callers import ADMIN, OWNER, Caller
from ingle.capacity import Capacity, Drained, MachineInfo, MachineUsage, Metrics
from ingle.grants import Isolation
from ingle.isolation.policy import can_be_granted, read_mount, tracked
from ingle.nodes import Node
from ingle.nodes.local import LocalNode
from ingle.requests import Author
from ingle.service.access import Access, Shared
from ingle.service.batch import Batches
from ingle.service.cells import Cells
from ingle.service.code_help import CodeHelp
from ingle.service.environments import Environments
from ingle.service.files import Files
from ingle.service.grants import Grants
from ingle.service.sessions import Sessions
from ingle.service.shell import Shell
from ingle.service.snapshots import Snapshots
from ingle.service.tools import Tools
from ingle.service.transcripts import Transcripts
from ingle.service.trials import Trials
from ingle.service.validation import check_seconds
from ingle.settings import Settings, data_folder
from ingle.snapshots.registry import SERVE
from ingle_worker.wire import states

PROBE = Caller("probe", ".probe")
"""Caller of the readiness check. No token can have its tenant, so that no other caller sees its sessions."""

PROBE_SECONDS = 10.0

DRAIN_SECONDS = 60.0
"""Time for running cells of a machine that is drained."""

LOCAL = "local"
"""Interface of cells that the process of the server asks for itself."""

MAX_CLIENT_CHARS = 64

MAX_SENDERS = 100
"""Pairs of interface and client whose services are kept. Clients choose their names."""


class Service(
    Sessions, Cells, Trials, CodeHelp, Batches, Shell, Files, Snapshots, Environments, Grants, Tools, Transcripts
):
    """All verbs, for one caller, and the start and stop of the node that carries them out."""

    def __init__(
        self,
        settings: Settings,
        node: Node,
        *,
        caller: Caller = OWNER,
        workspace: Path | None = None,
        shared: Shared | None = None,
        author: Author | None = None,
    ) -> None:
        self.settings = settings
        self.workspace = workspace
        self._node = node
        self._shared = shared or Shared()
        self.access = Access(caller, node, self._shared, author or Author(caller.name, LOCAL))
        self._sent_by: dict[tuple[str, str], Service] = {}
        """The same service for each interface and client."""

    @classmethod
    def local(
        cls, settings: Settings, home: Path | None = None, kind: str = "local", folder: str | None = None
    ) -> "Service":
        """Return a service whose sessions run on this machine. Needs a running event loop.

        Durable sessions come back in the next service of this kind with the same folder. Default: the current folder.
        Those of `serve` come back wherever it is started.
        """
        home = home or data_folder()
        place = SERVE if kind == SERVE else f"{kind}:{folder or os.getcwd()}"
        return cls(settings, LocalNode(settings, home, place), workspace=home / "workspace")

    @classmethod
    def beginning_in(
        cls, folder: str, settings: Settings, home: Path, kind: str, *, track: bool = False
    ) -> tuple["Service", str | None]:
        """Return a service whose sessions start in the first of `settings.folder`, or else in this folder.

        With `track`, the files of these folders belong to checkpoints, unless a folder says otherwise.

        Also return where they start. None: this folder cannot be granted, and each starts in its own.
        """
        if not settings.folder and can_be_granted(folder, home):
            settings = replace(settings, folder=[folder])
        if track:
            settings = replace(settings, folder=[tracked(each) for each in settings.folder])
        if settings.folder:
            start: str | None = read_mount(settings.folder[0]).folder
        else:
            start = folder if settings.isolation == "none" else None
        return cls.local(settings, home, kind, start), start

    def acting_for(self, caller: Caller) -> "Service":
        """Return the same service with the rights and the sessions of this caller."""
        return Service(self.settings, self._node, caller=caller, workspace=self.workspace, shared=self._shared)

    def sent_by(self, via: str, client: str = "") -> "Service":
        """Return the same service for requests over this interface. Cells name the interface and the client."""
        client = client[:MAX_CLIENT_CHARS]
        if not client.isprintable():
            client = "".join(filter(str.isprintable, client))
        found = self._sent_by.get((via, client))
        if found is None:
            if len(self._sent_by) >= MAX_SENDERS:
                self._sent_by.clear()
            author = Author(self.caller.name, via, client)
            found = self._sent_by[via, client] = Service(
                self.settings,
                self._node,
                caller=self.caller,
                workspace=self.workspace,
                shared=self._shared,
                author=author,
            )
        return found

    @property
    def caller(self) -> Caller:
        return self.access.caller

    def check(self, scope: str) -> None:
        """Raise Forbidden or Unauthorized if the caller may not use verbs of this scope."""
        self.access.check(scope)

    def check_owner(self, what: str) -> None:
        """Raise Forbidden unless the owner of the server calls."""
        self.access.check_owner(what)

    @property
    def stopping(self) -> bool:
        return self._shared.stopping

    async def start(self) -> None:
        await self._node.start()

    async def warm(self) -> None:
        """Start workers ahead, so that the first sessions start as quickly as later ones."""
        await self._node.warm()

    async def drain(self) -> int:
        """Refuse new cells and tasks from now on. Return the number of cells that still run."""
        self._shared.draining = True
        states_now = (await self._node.metrics()).sessions
        return sum(states_now.get(each, 0) for each in (states.RUNNING, states.WAITING, states.APPROVAL))

    async def stop(self) -> None:
        self._shared.stopping = True
        await self._node.stop()

    async def __aenter__(self) -> "Service":
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def isolation(self) -> Isolation:
        """Return the level of isolation, once the node has tested it."""
        return await self._node.isolation()

    async def capacity(self) -> Capacity:
        """Return how many sessions may live at once, and why not more."""
        return await self._node.capacity()

    async def check_ready(self) -> None:
        """Run a cell in a new worker. Raise Unavailable if it fails."""
        try:
            result = await self.acting_for(PROBE).execute_once("1", timeout=PROBE_SECONDS, wait=PROBE_SECONDS)
        except errors.IngleError as error:
            raise errors.Unavailable(f"no worker answers: {error.message}") from None
        if not result.success:
            raise errors.Unavailable(f"a worker answers wrongly: {result.status}; see the log")

    async def machine_usage(self) -> MachineUsage:
        """Return the CPU and memory that the whole machine used in the last half hour."""
        self.check(ADMIN)
        return await self._node.usage()

    async def machines(self) -> list[MachineInfo]:
        """Return the machines that sessions run on."""
        self.check(ADMIN)
        return await self._node.machines.list()

    async def scale(self, count: int) -> None:
        """Ask the cluster for so many machines."""
        self.access.check_owner("scale the cluster")
        await self._node.machines.scale(count)

    async def drain_machine(self, node: str, *, seconds: float = DRAIN_SECONDS) -> Drained:
        """Move the sessions of a machine to others. It gets no more. A running cell has `seconds` to end."""
        self.access.check_owner("drain a machine")
        check_seconds("seconds", seconds)
        return await self._node.machines.drain(node, seconds)

    async def metrics(self) -> Metrics:
        self.check(ADMIN)
        return await self._node.metrics()
