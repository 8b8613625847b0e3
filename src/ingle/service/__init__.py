"""The verbs: what every door can ask for, with the same names, defaults and checks. Who may, and how much.

The service holds no session and knows no process; it asks placement. It acts for one caller, the owner unless
`acting_for` says otherwise. The verbs stand in rooms by what they are about; `acting` is what all of them share.
"""

import copy
import os
from dataclasses import replace
from pathlib import Path

from ingle import errors
from ingle.callers import ADMIN, Caller
from ingle.events import Isolation, Metrics
from ingle.isolation.policy import can_be_granted
from ingle.nodes.local import LocalNode
from ingle.service.cells import Cells
from ingle.service.files import Files
from ingle.service.sessions import Sessions
from ingle.service.shell import Shell
from ingle.service.snapshots import Keeping
from ingle.settings import Settings, data_folder
from ingle_worker.wire import states

PROBE = Caller("probe", ".probe")
"""Who asks whether a worker answers: a tenant that no token can have, so that nobody meets its sessions."""

PROBE_PATIENCE = 10.0


class Service(Sessions, Cells, Shell, Files, Keeping):
    """The verbs of all rooms, and the life of what carries them out."""

    @classmethod
    def local(cls, settings: Settings, home: Path | None = None, kind: str = "local") -> "Service":
        """A service whose sessions live on this machine. Needs a running event loop.

        Durable sessions come back in the next service of this kind that is started in the same folder.
        """
        home = home or data_folder()
        service = cls(settings, LocalNode(settings, home, f"{kind}:{os.getcwd()}"))
        service.workspace = home / "workspace"
        return service

    @classmethod
    def beginning_in(cls, folder: str, settings: Settings, home: Path, kind: str) -> tuple["Service", str | None]:
        """A service whose sessions are granted this folder, to begin in; None in its place where they cannot be."""
        granted = can_be_granted(folder, home)
        if granted:
            settings = replace(settings, mount=[*settings.mount, folder])
        return cls.local(settings, home, kind), folder if granted or settings.isolation == "none" else None

    def acting_for(self, caller: Caller) -> "Service":
        """The same service, with the rights and the sessions of this caller."""
        bound = copy.copy(self)
        bound.caller = caller
        return bound

    @property
    def stopping(self) -> bool:
        return self._shared.stopping

    async def start(self) -> None:
        await self._node.start()

    async def warm(self) -> None:
        """Have workers ready, so that the first sessions start as quickly as later ones."""
        await self._node.warm()

    async def drain(self) -> int:
        """Begin nothing more; how many cells are still running."""
        self._shared.draining = True
        states_now = (await self._node.metrics()).sessions
        return states_now.get(states.RUNNING, 0) + states_now.get(states.WAITING, 0)

    async def stop(self) -> None:
        self._shared.stopping = True
        await self._node.stop()

    async def __aenter__(self) -> "Service":
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def isolation(self) -> Isolation:
        """How far sessions are held here, once it is known."""
        return await self._node.isolation()

    async def check_ready(self) -> None:
        """Have a fresh worker answer; an error says why none does."""
        try:
            result = await self.acting_for(PROBE).execute_once("1", timeout=PROBE_PATIENCE, wait=PROBE_PATIENCE)
        except errors.IngleError as error:
            raise errors.Unavailable(f"no worker answers: {error.message}") from None
        if not result.success:
            raise errors.Unavailable(f"a worker answers wrongly: {result.status}; see the log")

    async def metrics(self) -> Metrics:
        self.check(ADMIN)
        return await self._node.metrics()
