"""All sessions of one node: made, found, listed, ended; and what has to be looked after from time to time."""

import asyncio
import contextlib
import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import msgspec

from ingle import errors
from ingle.events import Load, Metrics
from ingle.isolation.egress.proxy import Egress, Route
from ingle.isolation.limits.cgroup_mounts import MEMORY, PROCESSES
from ingle.isolation.limits.watchdog import Watchdog, Watched
from ingle.requests import Bounds, NewSession, SessionLimits
from ingle.sessions.data_folder import Claim
from ingle.sessions.metrics import Record
from ingle.sessions.persistence.durable import Durables
from ingle.sessions.persistence.hibernation import Resting
from ingle.sessions.persistence.save_store import Shelves
from ingle.sessions.process.grants import Granting
from ingle.sessions.process.launchers import Launchers
from ingle.sessions.process.session_pool import Spares
from ingle.sessions.process.shell_sandboxes import ShellRooms
from ingle.sessions.session import Session
from ingle.sessions.spec import Origin, Plan
from ingle.sessions.user_libraries import Stdlibs
from ingle.settings import Settings
from ingle.snapshots.registry import Row
from ingle.support.audit_log import Audit
from ingle.support.background import run_forever
from ingle.workers.io import blocked_readers
from ingle.workers.launch.launcher import Launcher
from ingle_worker.wire import states

logger = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")

WATCH_INTERVAL = 0.1
"""How often running cells are looked at for raw reads of standard input."""

EXPIRE_INTERVAL = 1.0


class Manager:
    def __init__(self, settings: Settings, home: Path, place: str = "") -> None:
        """`place`: the kind of server and the folder it was started in; durable sessions come back there."""
        self.settings = settings
        # Without links: a sandbox has this path too, and none of those that led there.
        home = Path(os.path.realpath(home))
        self._claim = Claim(home)
        self._loop = asyncio.get_running_loop()
        self._spares = Spares(home, self._claim.server, self._make_ahead)
        self._launchers = Launchers(settings, home, self._spares.furnish)
        self._sessions: dict[str, Session] = {}
        self._making: dict[str, Session | None] = {}
        self._chores: list[asyncio.Task[None]] = []
        self._endings: set[asyncio.Task[None]] = set()
        self._taking: asyncio.Future[None] | None = None
        self._stopped = False
        self.stdlibs = Stdlibs(home, self._scratch)
        self.shell_rooms = ShellRooms(self._hidden)
        self.record = Record()
        if settings.audit == "on":
            self.record.audit = Audit(home)
        self.granting = Granting(settings, home, self._launchers, self.record)
        self.egress = Egress(self.granting.policy.hosts(), Route.read(dict(os.environ)))
        self._watchdog = Watchdog(self._watched)
        self.shelves = Shelves(home, settings.max_snapshot)
        self._durables = Durables(settings, home, self._claim.server, place, self.shelves)
        self._resting = Resting(settings, self._sessions.values, self.end_soon)

    async def start(self) -> None:
        """Take the data folder, clear what dead servers left in it, and begin to look after things."""
        _raise_file_limit()
        self._taking = self._loop.run_in_executor(None, self._claim.take)
        await asyncio.shield(self._taking)
        try:
            await self.granting.start()
        except errors.IngleError:
            self._claim.release()
            raise
        for row in await self._durables.left_behind(self._claim.is_dead):
            await self._take_over(row)
        self._chores = [
            self._loop.create_task(run_forever("looking for reads of standard input", self._watch_raw_reads)),
            self._loop.create_task(run_forever("looking for idle sessions", self._expire)),
            self._loop.create_task(run_forever("looking at what sessions use", self._watchdog.run)),
        ]

    async def warm(self) -> None:
        """Have prepared workers of the default interpreter, and all else that a first session would wait for."""
        self._durables.prepare()
        await self.granting.settled()
        await self.granting.launcher(self.granting.policy.settle(NewSession())).warm()

    def folder(self, name: str) -> Path:
        """A folder of this server's own in the data folder; cleared away when the server is gone."""
        return self._claim.folder(name)

    # --- sessions ---

    def _session(self, plan: Plan, launcher: Launcher) -> Session:
        bounding = self.granting.bounding
        session = Session(plan, launcher, self.settings, self.record, bounding, self.egress)
        session.starting.make_room = self._make_room
        return session

    def _make_ahead(self, plan: Plan, launcher: Launcher) -> Session:
        session = self._session(plan, launcher)
        self._durables.keep_here(session, plan.folder.name.rpartition(".")[2])
        return session

    async def create(self, wanted: NewSession, prepare: Callable[[Session], Awaitable[None]] | None = None) -> Session:
        """A new session, ready for its first cell; `prepare` is done with it before anybody else finds it.

        Its key, by which it is found, is its name; that of a tenant's own session is `tenant/name`.
        """
        if self._stopped:
            raise errors.Unavailable("the server is stopping; start it again")
        name = wanted.session_id
        if name is None:
            name = _random_name()
        else:
            check_name(name)
        key = key_of(wanted.tenant, name)
        if key in self._sessions or key in self._making:
            raise errors.SessionExists(name)
        began = time.monotonic()
        # Before anything is waited for: those who ask meanwhile find the name taken, and the place too.
        full = len(self._sessions) + len(self._making) >= self.settings.max_sessions <= self._live()
        self._making[key] = None
        launcher: Launcher | None = None
        lodging = ""
        try:
            if full:
                await self._resting.make_room(lambda: self._live() - 1)
            grant = await self.granting.grant(wanted, key)
            launcher = self.granting.launcher(grant)
            spare = None if wanted.durable else self._spares.offer(grant, launcher)
            if spare is not None:
                lodging, folder = spare.home.name, spare.home.folder
            else:
                uid = _random_name()
                folder = self._durables.folder(uid) if wanted.durable else self.folder(uid)
                lodging = folder.name
                launcher.hurry(lodging, grant.network)
            plan = Plan(
                name,
                folder,
                grant.cwd,
                {**grant.environment, **wanted.env} if wanted.env else grant.environment,
                self.settings.idle_timeout if wanted.idle_timeout is None else wanted.idle_timeout,
                wanted.one_off,
                key,
                await self.stdlibs.read(wanted.tenant) if wanted.include_stdlib else None,
                grant,
                None if spare is None else spare.home,
                (wanted.checkpoints or self.settings.checkpoints) == "auto",
            )
            if spare is None:
                session = self._session(plan, launcher)
            else:
                session = spare
                session.become(plan)
            self._making[key] = session
            try:
                if wanted.durable:
                    # Unpickled nowhere that is less confined than where it was made.
                    made = msgspec.structs.replace(wanted, isolation=grant.isolation)
                    self._durables.keep(session, await self._durables.add(uid, name, made))
                elif wanted.one_off:
                    session.keeper = None
                elif spare is None:
                    self._durables.keep_here(session, uid)
                await session.start()
                if prepare is not None:
                    await prepare(session)
            except BaseException:
                await session.end()
                if self._stopped:
                    raise errors.Unavailable("the server is stopping; start it again") from None
                raise
        except BaseException:
            if launcher is not None:
                self._spares.withdraw(launcher, lodging)
            raise
        finally:
            del self._making[key]
        self._sessions[key] = session
        self.record.session_made(key, time.monotonic() - began, grant.isolation, grant.network)
        return session

    async def fork(self, key: str, names: list[str | None], *, reseed: bool = False) -> list[Session]:
        """Live copies of a session, each a session of its own with one of these names. All of them or none.

        What is not of the process is as it was with the original: its limits, its start folder, how long it may be
        idle, whether it makes checkpoints by itself.
        """
        if self._stopped:
            raise errors.Unavailable("the server is stopping; start it again")
        original = self.get(key)
        tenant = tenant_of(key)
        keys = {}
        for name in names:
            given = name if name is not None else _random_name()
            check_name(given)
            its_key = key_of(tenant, given)
            if its_key in self._sessions or its_key in self._making or its_key in keys:
                raise errors.SessionExists(given)
            keys[its_key] = given
        if self._live() + len(keys) > self.settings.max_sessions:
            raise errors.TooManySessions(self.settings.max_sessions)
        began = time.monotonic()
        self._making.update(dict.fromkeys(keys))
        made: list[Session] = []
        try:
            async with original.own_turn() as worker:
                moment = original.moment
                copies = await worker.fork(len(keys))
            workers = await copies.up()
            notices = list(copies.notices)
            if original.keeper is not None and original.keeper.durable:
                notices.append("this fork is not durable, though its original is: save it to keep it")
            origin = Origin(original.id, moment, notices, reseed)
            for (its_key, name), copy in zip(keys.items(), workers, strict=True):
                identity = _random_name()
                plan = msgspec.structs.replace(
                    original.plan,
                    session_id=name,
                    key=its_key,
                    folder=self._claim.folder(identity),
                    home=original.home.fork(identity),
                    one_off=False,
                )
                session = self._session(plan, original.launcher)
                self._durables.keep_here(session, identity)
                self._making[its_key] = session
                made.append(session)
                session.starting.begin_as(copy, origin)
            try:
                await asyncio.gather(*(session.starting.wait() for session in made))
            except BaseException:
                await asyncio.gather(*(session.end() for session in made))
                if self._stopped:
                    raise errors.Unavailable("the server is stopping; start it again") from None
                raise
        finally:
            for its_key in keys:
                del self._making[its_key]
        for session in made:
            self._sessions[session.key] = session
            grant = session.plan.grant
            self.record.session_made(session.key, time.monotonic() - began, grant.isolation, grant.network)
        return made

    async def _take_over(self, row: Row) -> None:
        """A session that an earlier server of this place had; the next call brings it back."""
        tenant = row.made.tenant
        name, number = row.name, 2
        while (key := key_of(tenant, name)) in self._sessions:
            name, number = f"{row.name[:60]}-{number}", number + 1
        try:
            grant = await self.granting.grant(row.made, key)
        except errors.IngleError as error:
            # It stays in the registry, for a server that can have it.
            logger.warning("session %s does not come back: %s", row.name, error.message)
            return
        plan = Plan(
            name,
            self._durables.folder(row.uid),
            grant.cwd,
            {**grant.environment, **row.made.env},
            self.settings.idle_timeout if row.made.idle_timeout is None else row.made.idle_timeout,
            False,
            key,
            await self.stdlibs.read(tenant) if row.made.include_stdlib else None,
            grant,
            auto_checkpoints=(row.made.checkpoints or self.settings.checkpoints) == "auto",
        )
        session = self._session(plan, self.granting.launcher(grant))
        self._durables.keep(session, row)
        session.come_back(row)
        self._sessions[key] = session
        if name != row.name:
            await self._durables.registry.rename(row.uid, name)

    def _live(self) -> int:
        """Sessions that have a process, or are about to."""
        freed = sum(session.state == states.HIBERNATED for session in self._sessions.values())
        return len(self._sessions) + len(self._making) - freed

    async def _make_room(self) -> None:
        await self._resting.make_room(self._live)

    async def _hidden(self, kind: str, wanted: NewSession) -> Session:
        """A session that nobody is told of; not started yet."""
        if self._stopped:
            raise errors.Unavailable("the server is stopping; start it again")
        name = f".{kind}-{_random_name()}"
        key = f"{wanted.tenant}/{name}"
        grant = await self.granting.grant(wanted, key)
        folder = self._claim.folder(_random_name())
        plan = Plan(name, folder, grant.cwd, key=key, grant=grant)
        return self._session(plan, self.granting.launcher(grant))

    @contextlib.asynccontextmanager
    async def _scratch(self, tenant: str, bounds: Bounds) -> AsyncIterator[Session]:
        """A session that nobody else sees, for as long as the context lasts."""
        session = await self._hidden("scratch", NewSession(tenant=tenant, bounds=bounds))
        self._making[session.key] = session
        try:
            await session.start()
            yield session
        finally:
            del self._making[session.key]
            await session.end()

    def get(self, key: str) -> Session:
        session = self._sessions.get(key)
        if session is None:
            raise errors.SessionNotFound(key.rpartition("/")[2])
        return session

    def all(self, tenant: str = "") -> list[Session]:
        return [session for session in self._sessions.values() if tenant_of(session.key) == tenant]

    def load(self, tenant: str) -> Load:
        sessions = self.all(tenant)
        making = sum(tenant_of(key) == tenant for key in self._making)
        return Load(len(sessions) + making, sum(session.running is not None for session in sessions))

    def metrics(self) -> Metrics:
        metrics = self.record.metrics(Counter(session.state for session in self._sessions.values()))
        counts = self.egress.counts
        metrics.egress = {"allowed": counts.allowed, "refused": counts.refused, "failed": counts.failed}
        metrics.egress_bytes = counts.bytes
        return metrics

    async def end(self, key: str) -> Session:
        """End a session; it is out of the list at once."""
        session = self.get(key)
        await asyncio.shield(self.end_soon(session, "asked for"))
        return session

    def end_soon(self, session: Session, reason: str) -> "asyncio.Task[None]":
        """End a session without waiting for it."""
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]
            self.record.session_ended(session.key, time.time() - session.created_at, reason)
        ending = self._loop.create_task(session.end())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        return ending

    async def stop(self) -> None:
        """End everything this manager has started, and leave the data folder clean."""
        self._stopped = True
        if self._taking is not None:
            # A start that was called off goes on in its thread, and would take what is given back below.
            await asyncio.wait([self._taking])
        for launcher in self._launchers.all:
            launcher.rest()
        for chore in self._chores:
            chore.cancel()
        if self._chores:
            await asyncio.wait(self._chores)
        await self.granting.cancel()
        sessions = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            self.record.session_ended(session.key, time.time() - session.created_at, "the server stops")
        sessions += [session for session in self._making.values() if session is not None]
        await self._resting.stop()
        sessions += await self.shell_rooms.stop()
        durable = [session for session in sessions if session.keeper is not None and session.keeper.durable]
        if durable:
            saving = [self._loop.create_task(session.keep_for_later()) for session in durable]
            await asyncio.wait(saving, timeout=self.settings.exit_grace)
        await asyncio.gather(*(session.end(keep=session in durable) for session in sessions))
        if self._endings:
            await asyncio.wait(self._endings)
        await self._durables.registry.close()
        self.shelves.close()
        await self._launchers.stop()
        await self._spares.stop()
        await self.granting.close()
        if self.record.audit is not None:
            await self.record.audit.close()
        self._claim.release()

    # --- chores ---

    async def _watch_raw_reads(self) -> None:
        """Cells that have run for a moment: does anything in them block on standard input?"""
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            watched = {}
            for session in self._sessions.values():
                session.show_next_wait()
                cell, worker = session.running, session.worker
                if cell is None or worker is None or worker.pid is None or cell.age < WATCH_INTERVAL or cell.waits:
                    continue
                watched[worker.pid] = (session, cell, worker.stdin.inode, cell.answers)
            if not watched:
                continue
            roots = {pid: inode for pid, (_, _, inode, _) in watched.items()}
            blocked = await asyncio.to_thread(blocked_readers.find_blocked, roots)
            for pid, (session, cell, _, answers) in watched.items():
                # An answer that came meanwhile makes the sight out of date.
                if cell.answers == answers:
                    session.on_raw_read(cell, pid in blocked)

    def _watched(self) -> Iterator[Watched]:
        """Sessions with limits that the kernel does not keep, or not all of them."""
        for session in self._sessions.values():
            worker, grant = session.worker, session.plan.grant
            if worker is None or worker.init_pid is None or grant.limits == SessionLimits():
                continue
            places = () if worker.group is None else worker.group.places
            yield Watched(
                # Forks have one init, and each its own limits.
                worker.init_pid if not worker.siblings.shared else worker.pid or worker.init_pid,
                grant.limits,
                session.on_breach,
                running=session.running is not None,
                memory=MEMORY not in places,
                processes=PROCESSES not in places,
                network=session.launcher.confinement is not None and session.launcher.confinement.has_own_root,
                folder=session.home.root,
            )

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_INTERVAL)
            self._resting.look()


def key_of(tenant: str, name: str) -> str:
    """What a session is found by."""
    return f"{tenant}/{name}" if tenant else name


def tenant_of(key: str) -> str:
    return key.rpartition("/")[0]


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise errors.InvalidName(
            f"{name[:80]!r} is not a name: 1 to 64 letters, digits, '.', '_' or '-', not starting with a dot"
        )


def _random_name() -> str:
    """Return a name that nobody can guess."""
    return os.urandom(8).hex()


def _raise_file_limit() -> None:
    """A session takes six descriptors: allow as many as the system does."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
