"""All sessions of one node: made, forked, found, listed, ended."""

import asyncio
import contextlib
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

import msgspec

from ingle import errors
from ingle.capacity import Load, Metrics
from ingle.grants import GrantInfo
from ingle.isolation.egress.proxy import Egress, Route
from ingle.isolation.policy import Grant, Policy
from ingle.requests import Bounds, NewSession
from ingle.sessions.admission import Admission
from ingle.sessions.data_folder import DataFolder
from ingle.sessions.descriptors import Descriptors
from ingle.sessions.forks import sharing
from ingle.sessions.forks.forking import ForkedCopy
from ingle.sessions.hints import all_hints
from ingle.sessions.metrics import Telemetry
from ingle.sessions.persistence.autosave import SaveTarget
from ingle.sessions.persistence.durable import DurableSessions
from ingle.sessions.persistence.hibernation import Hibernation
from ingle.sessions.persistence.save_store import SaveStore
from ingle.sessions.persistence.takeover import Takeover
from ingle.sessions.process.grants import Grants
from ingle.sessions.process.launchers import Launchers
from ingle.sessions.process.prepared_workers import PreparedWorker, PreparedWorkers
from ingle.sessions.process.session_folders import SessionFolders
from ingle.sessions.process.shell_sandboxes import ShellSandboxes
from ingle.sessions.process.workspace import Workspace
from ingle.sessions.session import Session
from ingle.sessions.spec import SessionSpec, check_name, key_of, tenant_of
from ingle.sessions.upkeep import Upkeep
from ingle.sessions.user_libraries import UserLibraries
from ingle.sessions.watch.folders import FolderWatches
from ingle.settings import Settings
from ingle.snapshots.registry import Row
from ingle.support.audit_log import Audit
from ingle.support.idempotency import Idempotency
from ingle.tools.servers import ToolServers
from ingle.trees.stores import TreeStores
from ingle.workers.launch.launcher import Launcher
from ingle_worker.wire import child_variables, states


class Manager:
    def __init__(self, settings: Settings, home: Path, place: str = "", agent: str = "") -> None:
        """`place` is the kind of server and the folder it was started in. Durable sessions come back there.

        Claims in an object store name the `agent`. Default: the server.
        """
        self.settings = settings
        # Without links: a sandbox has this path too, and none of the links that led there.
        home = Path(os.path.realpath(home))
        self._data_folder = DataFolder(home)
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[str, Session] = {}
        self._making: dict[str, Session | None] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._locking: asyncio.Future[None] | None = None
        self._stopped = False
        self.telemetry = Telemetry()
        if settings.audit == "on":
            self.telemetry.audit = Audit(home)
        self._watches = FolderWatches()
        self.saves = SaveStore(home, settings.max_snapshot, settings.keep_disk)
        self._trees = TreeStores(self._data_folder, settings, self.saves)
        self.tools = ToolServers(settings, home)
        policy = Policy(settings, home)
        self.egress = Egress(policy.hosts(), Route.read(dict(os.environ)))
        self.prepared = PreparedWorkers(home, self._data_folder.server, self.egress)
        self._launchers = Launchers(settings, home, self.prepared)
        self.grants = Grants(settings, home, self._launchers, self.telemetry)
        self.admission = Admission(settings, self.grants)
        self.libraries = UserLibraries(home, self.scratch)
        self.shell_sandboxes = ShellSandboxes(self._hidden)
        self._durable = DurableSessions(settings, home, self._data_folder.server, place, self.saves, agent)
        self.takeover = Takeover(self._durable, self._sessions, self._making, self._take_over, self.end_soon)
        self._hibernation = Hibernation(settings, self.admission, self._sessions.values, self.end_soon)
        self._hints = all_hints(settings, home, policy)
        self._descriptors = Descriptors(self._sessions.values)
        self.upkeep = Upkeep(
            self._sessions.values, self._with_hidden, self._hibernation, self._descriptors, self.telemetry
        )

    async def start(self) -> None:
        """Lock the data folder, remove what dead servers left in it, and begin the upkeep."""
        self._locking = self._loop.run_in_executor(None, self._data_folder.take)
        await asyncio.shield(self._locking)
        try:
            await self.takeover.open()
            await self.grants.start()
        except errors.IngleError:
            await self.takeover.stop()
            self._data_folder.release()
            raise
        for row in await self._durable.left_behind(self._data_folder.is_dead):
            with contextlib.suppress(errors.SessionHeldBack):
                await self._take_over(row)
        await self.takeover.start()
        self.upkeep.start()

    async def warm(self) -> None:
        """Prepare workers of the default interpreter, and all else that a first session would wait for."""
        self._durable.prepare()
        await self.grants.settled()
        await self.grants.launcher(self.grants.policy.settle(NewSession())).warm()

    def folder(self, name: str) -> Path:
        """Return a folder of this server in the data folder. A later server removes it if this one dies."""
        return self._data_folder.folder(name)

    # --- making sessions ---

    async def regrant(self, listed: list[GrantInfo]) -> None:
        """Put these grants in force. A live session that is confined has them from its next process on."""
        await self.grants.change(listed)
        self.egress.allowed = self.grants.policy.hosts()
        self.shell_sandboxes.renew()
        for session in self._known():
            self._renew(session)
        if not self._making:
            used = {launcher for session in self._with_hidden() for launcher in session.slot.used_launchers}
            await self._launchers.stop_retired(used)

    def _renew(self, session: Session) -> None:
        """Take the session's next worker from the launcher that has the grants of now."""
        session.slot.next_launcher = self.grants.renewed(session.spec.grant, session.spec.tenant)

    def _known(self) -> list[Session]:
        return [*self._sessions.values(), *(session for session in self._making.values() if session is not None)]

    def _with_hidden(self) -> list[Session]:
        known = self._known()
        return [
            *known,
            *self.shell_sandboxes.sessions,
            *(each for session in known for each in session.trials.sessions),
        ]

    async def create(self, wanted: NewSession, prepare: Callable[[Session], Awaitable[None]] | None = None) -> Session:
        """Return a new session that is ready for its first cell. `prepare` is done before others can find it."""
        self._check_running()
        original = None if wanted.shares is None else self.get(key_of(wanted.tenant, wanted.shares))
        wanted = sharing.placed(wanted, original, self.grants.policy.start)
        name = wanted.session_id
        if name is None:
            name = secrets.token_hex(8)
        else:
            check_name(name)
        key = key_of(wanted.tenant, name)
        if key in self._sessions or key in self._making:
            raise errors.SessionExists(name)
        began = time.monotonic()
        # The name and the slot are taken before anything is awaited.
        full = self._is_full(wanted.tenant)
        self._making[key] = None
        try:
            if full:
                await self._hibernation.free_process(lambda: self._live() - 1)
            async with self.admission.start(wanted.tenant):
                session = self._making[key] = await self._make(wanted, name, key, original)
                await self._finish([session], session.start())
            if prepare is not None:
                await self._finish([session], prepare(session))
            if not wanted.one_off:
                notices = await self._durable.names.notices(key)
                # A loaded session has the state that its caller asked for.
                session.journal.tell(notices if prepare is None else [])
        finally:
            del self._making[key]
        self._register([session], began)
        self._tidy_soon()
        return session

    async def _make(self, wanted: NewSession, name: str, key: str, original: Session | None) -> Session:
        """Return a session that is not started yet, perhaps with the folder of another one."""
        grant = await self.grants.grant(wanted, key)
        launcher = self.grants.launcher(grant)
        home = sharing.home_of(wanted, launcher.confinement)
        spec = await self._resolve(wanted, name, key, grant, home)
        uid = secrets.token_hex(8)
        if original is not None:
            spec = sharing.share(spec, original, uid)
        if wanted.durable:
            # A later server must not unpickle it where it is less confined than where it was made.
            made = msgspec.structs.replace(wanted, isolation=grant.isolation)
            row = await self._durable.add(uid, name, made)
            spec = msgspec.structs.replace(spec, folder=self._durable.folder(uid))
            return self._durable_session(spec, launcher, row)
        # Nothing is awaited from here on: the session owns the worker.
        prepared = self.prepared.take(grant, launcher, spec.tenant) if not (spec.folders or spec.home) else None
        folder = self.folder(uid) if prepared is None else prepared.workspace.folders.folder
        spec = msgspec.structs.replace(spec, folder=folder)
        saves = None if wanted.one_off else self._durable.temporary_target(spec, uid)
        return self._session(spec, launcher, prepared=prepared, saves=saves)

    async def _resolve(self, wanted: NewSession, name: str, key: str, grant: Grant, home: str = "") -> SessionSpec:
        """Return the description of a session that is asked for. Its folder is not chosen yet."""
        library = await self.libraries.read(wanted.tenant) if wanted.include_stdlib else None
        env = {child_variables.ENDS_WITH: "this call", **wanted.env} if wanted.one_off else wanted.env
        env = {"HOME": home, **env} if home else env
        return SessionSpec(
            name,
            Path(),
            key,
            grant.cwd,
            {**grant.environment, **env} if env else grant.environment,
            self.settings.idle_timeout if wanted.idle_timeout is None else wanted.idle_timeout,
            wanted.one_off,
            library,
            grant,
            auto_checkpoints=(wanted.checkpoints or self.settings.checkpoints) == "auto",
            keep_failures=self.settings.keep_failures if wanted.keep_failures is None else wanted.keep_failures,
            made=wanted,
            home=home,
        )

    def _session(
        self,
        spec: SessionSpec,
        launcher: Launcher,
        *,
        prepared: PreparedWorker | None = None,
        saves: SaveTarget | None = None,
        requests: Idempotency | None = None,
    ) -> Session:
        if prepared is not None:
            workspace = prepared.workspace
        else:
            folders = spec.folders or SessionFolders(spec.folder)
            workspace = Workspace(folders, launcher, self.grants.bounding, self.egress, spec.home)
        return Session(
            spec,
            launcher,
            workspace,
            self.settings,
            self.telemetry,
            self._watches,
            self._trees,
            self.tools,
            prepared=prepared,
            saves=saves,
            requests=requests,
            free_process=self._free_process,
            make_room=self._descriptors.make_room,
            hints=self._hints,
            make_fork=self._trial_of,
        )

    def _durable_session(self, spec: SessionSpec, launcher: Launcher, row: Row) -> Session:
        saves = self._durable.target(spec, row)
        return self._session(spec, launcher, saves=saves, requests=self._durable.requests(row, saves.stored))

    async def _finish(self, made: list[Session], starting: Awaitable[object]) -> None:
        """Wait until these sessions have started. If that fails, end all of them."""
        try:
            await starting
        except BaseException:
            await asyncio.gather(*(session.end() for session in made))
            self._check_running()
            raise

    def _register(self, made: list[Session], began: float) -> None:
        for session in made:
            self._sessions[session.key] = session
            if session.autosave is not None and not session.autosave.durable:
                self._durable.names.begin(session.key)
            if self.grants.changed:
                # They may have changed since its launcher was chosen, or a fork have the launcher of its original.
                self._renew(session)
            grant = session.spec.grant
            self.telemetry.session_made(session.key, time.monotonic() - began, grant.isolation, grant.network)

    async def fork(
        self, key: str, names: list[str | None], *, at: int | None, reseed: bool, shares: str | None
    ) -> list[Session]:
        """Return live copies of a session, each a session of its own with one of these names. All of them or none.

        A copy has the limits, the start folder, the idle timeout and the automatic checkpoints of its original.
        """
        self._check_running()
        original = self.get(key)
        folders = None if shares is None else sharing.beside(original, self.get(key_of(tenant_of(key), shares)))
        keys = self._new_keys(tenant_of(key), names)
        if self._is_full(tenant_of(key), len(keys)):
            raise self.admission.refusal()
        began, made = time.monotonic(), list[Session]()
        self._making.update(dict.fromkeys(keys))
        try:
            uids = [secrets.token_hex(8) for _ in keys]
            forking = original.forked(uids, at=at, reseed=reseed, beside=folders)
            async with self.admission.start(tenant_of(key)), forking as copies:
                for (its_key, name), uid, copy in zip(keys.items(), uids, copies, strict=True):
                    if original.autosave is not None and original.autosave.durable:
                        copy.origin.notices.append(
                            "this fork is not durable, though its original is: save it to keep it"
                        )
                    session = self._making[its_key] = self._fork_of(original, its_key, name, uid, copy)
                    made.append(session)
                    session.begin_fork(copy)
                await self._finish(made, asyncio.gather(*(session.slot.wait_forked() for session in made)))
        finally:
            for its_key in keys:
                del self._making[its_key]
        self._register(made, began)
        self._tidy_soon()
        return made

    def _new_keys(self, tenant: str, names: list[str | None]) -> dict[str, str]:
        """Return the names of forks by their keys. Raise an error if one is taken or wrong."""
        keys: dict[str, str] = {}
        for name in names:
            given = name if name is not None else secrets.token_hex(8)
            check_name(given)
            key = key_of(tenant, given)
            if key in self._sessions or key in self._making or key in keys:
                raise errors.SessionExists(given)
            keys[key] = given
        return keys

    def _fork_of(self, original: Session, key: str, name: str, uid: str, copy: ForkedCopy) -> Session:
        changes = {"session_id": name, "key": key, "parent": original.id, "folders": copy.folders, "one_off": False}
        spec = msgspec.structs.replace(original.spec, folder=self.folder(uid), **changes)
        session = self._session(spec, original.launcher, saves=self._durable.temporary_target(spec, uid))
        session.tools.inherit(original.tools)
        return session

    def _trial_of(self, spec: SessionSpec, launcher: Launcher, uid: str, copy: ForkedCopy) -> Session:
        """Return a session that no listing shows, for a copy of another one."""
        key, folder = f"{spec.key}.{uid}", self.folder(uid)
        changes = {"key": key, "folder": folder, "folders": copy.folders, "auto_checkpoints": False, "trial": True}
        session = self._session(msgspec.structs.replace(spec, keep_failures=0, **changes), launcher)
        session.tools.inherit(self._sessions[spec.key].tools)
        return session

    async def _take_over(self, row: Row) -> None:
        """Take over a session of an earlier server. The next call restores it. Raise SessionHeldBack if it may not."""
        tenant = row.made.tenant
        name, number = row.name, 2
        while (key := key_of(tenant, name)) in self._sessions:
            name, number = f"{row.name[:60]}-{number}", number + 1
        try:
            grant, notices = await self.grants.grant_again(row.made, key)
        except errors.IngleError as error:
            await self._durable.hold_back(row.uid, key, error)
            raise self._durable.names.missing(key) from error
        spec = await self._resolve(row.made, name, key, grant)
        spec = msgspec.structs.replace(spec, folder=self._durable.folder(row.uid), one_off=False)
        session = self._durable_session(spec, self.grants.launcher(grant), row)
        await session.begin_hibernated(row)
        session.journal.tell(notices)
        self._sessions[key] = session
        if name != row.name:
            await self._durable.registry.rename(row.uid, name)

    async def _hidden(self, kind: str, wanted: NewSession) -> Session:
        """Return a session that no listing shows. It is not started yet."""
        self._check_running()
        name = f".{kind}-{secrets.token_hex(8)}"
        key = f"{wanted.tenant}/{name}"
        grant = await self.grants.grant(wanted, key)
        spec = SessionSpec(name, self.folder(secrets.token_hex(8)), key, grant.cwd, grant=grant)
        return self._session(spec, self.grants.launcher(grant))

    @contextlib.asynccontextmanager
    async def scratch(self, tenant: str, bounds: Bounds) -> AsyncIterator[Session]:
        """Provide a hidden session for as long as the context lasts."""
        session = await self._hidden("scratch", NewSession(tenant=tenant, bounds=bounds))
        self._making[session.key] = session
        try:
            await session.start()
            yield session
        finally:
            del self._making[session.key]
            await session.end()

    def _check_running(self) -> None:
        if self._stopped:
            raise errors.Unavailable("the server is stopping; start it again") from None

    def _is_full(self, tenant: str, more: int = 1) -> bool:
        """Return whether a process must be freed first. Raise TooManySessions if this tenant has its share."""
        self._descriptors.make_room()
        known = len(self._sessions) + len(self._making) + more
        if tenant and known > self.admission.share:
            self.admission.check_share(self._live(tenant) + more)
        return known > self.admission.limit < self._live() + more

    def _live(self, tenant: str | None = None) -> int:
        """Return how many sessions of a tenant, or of all of them, have a process or are about to."""
        keys = [key for key, session in self._sessions.items() if session.state != states.HIBERNATED]
        return sum(tenant is None or tenant_of(key) == tenant for key in (*keys, *self._making))

    async def _free_process(self) -> None:
        await self._hibernation.free_process(self._live)

    # --- finding and ending them ---

    def get(self, key: str) -> Session:
        if key not in self._sessions:
            raise self._durable.names.missing(key, stopping=self._stopped)
        return self._sessions[key]

    def everyone(self) -> list[Session]:
        """Return the sessions of all tenants."""
        return list(self._sessions.values())

    def all(self, tenant: str = "") -> list[Session]:
        return [session for session in self._sessions.values() if tenant_of(session.key) == tenant]

    def load(self, tenant: str) -> Load:
        sessions, making = self.all(tenant), sum(tenant_of(key) == tenant for key in self._making)
        return Load(len(sessions) + making, sum(session.running is not None for session in sessions))

    def metrics(self) -> Metrics:
        metrics = self.telemetry.metrics(Counter(session.state for session in self._sessions.values()))
        gpu = self.upkeep.gpu_use()
        metrics.gpu_memory, metrics.gpu_utilization = gpu.memory, gpu.utilization
        counts = self.egress.counts
        metrics.egress = {"allowed": counts.allowed, "refused": counts.refused, "failed": counts.failed}
        metrics.egress_bytes = counts.bytes
        metrics.max_sessions, metrics.starts_waiting = self.admission.limit, self.admission.waiting
        return metrics

    def end_soon(self, session: Session, reason: str, *, keep: bool = False) -> "asyncio.Task[None]":
        """Begin to end a session, which leaves the list at once. Return the task of its end. `keep` its saves."""
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]
            self._durable.names.end(session.key)
            self.telemetry.session_ended(session.key, time.time() - session.created_at, reason)
        ending = self._loop.create_task(session.end(keep=keep))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        ending.add_done_callback(lambda ending: self._tidy_soon())
        return ending

    # --- environments ---

    def _tidy_soon(self) -> None:
        """Give up builds of environments that no session uses any more, without waiting for it."""
        making = self._making.values()
        if self._stopped or None in making or not self.grants.builds.held:
            return
        used = {session.spec.grant.build for session in (*self._sessions.values(), *filter(None, making))}
        dropped = self.grants.builds.keep_only(used)
        if dropped:
            tidying = self._loop.create_task(self.grants.drop_stale(dropped))
            self._endings.add(tidying)
            tidying.add_done_callback(self._endings.discard)

    async def stop(self) -> None:
        """End everything that this manager has started, and leave the data folder clean."""
        self._stopped = True
        self.admission.close()
        if self._locking is not None:
            # A cancelled start goes on in its thread, and would lock what is released below.
            await asyncio.wait([self._locking])
        for launcher in self._launchers.all:
            launcher.rest()
        await self.upkeep.stop()
        await self.takeover.stop()
        await self.grants.cancel()
        sessions = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            self.telemetry.session_ended(session.key, time.time() - session.created_at, "the server stops")
        sessions += [session for session in self._making.values() if session is not None]
        await self._hibernation.stop()
        sessions += await self.shell_sandboxes.stop()
        await self._end_all(sessions)
        if self._endings:
            await asyncio.wait(self._endings)
        await self.tools.close()
        self._watches.close()
        await self._trees.close()
        await self.takeover.close()
        await self._durable.registry.close()
        self.saves.close()
        await self._launchers.stop()
        await self.prepared.stop()
        await self.grants.close()
        if self.telemetry.audit is not None:
            await self.telemetry.audit.close()
        self._data_folder.release()

    async def _end_all(self, sessions: Iterable[Session]) -> None:
        durable = [session for session in sessions if session.autosave is not None and session.autosave.durable]
        if durable:
            saving = [self._loop.create_task(session.saves.finish()) for session in durable]
            await asyncio.wait(saving, timeout=self.settings.exit_grace)
        await asyncio.gather(*(session.end(keep=session in durable) for session in sessions))
