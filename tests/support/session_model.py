"""Random operations on a session and its forks, each compared with a plain model of its files and variables.

A model is a dict of files and one of variables. Copying a session copies the dicts.
"""

import ast
import copy
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ingle import Client
from ingle.client import Session
from ingle.client.results import Result
from ingle.files import FileChanges, FileDiff, VariableDiff
from support.server import Server

MAX_SESSIONS = 4
NEW_MODE = 0o644

BEGIN = "import os as _os; _os.umask(0o022); _os.makedirs('c', exist_ok=True)\n"
"""Every cell begins with this. Its names are not listed as variables."""

LOOK = (
    BEGIN
    + """
def _look():
    files = {}
    for folder, folders, names in _os.walk('.'):
        for name in [*names, *(each for each in folders if _os.path.islink(_os.path.join(folder, each)))]:
            path = _os.path.relpath(_os.path.join(folder, name))
            if _os.path.islink(path):
                files[path] = ('link', 0, _os.readlink(path))
            else:
                with open(path) as file:
                    files[path] = ('file', _os.stat(path).st_mode & 0o777, file.read())
    held = [name for name in ('x', 'y', 'z') if name in globals()]
    same = [(one, other) for one in held for other in held if one < other and isinstance(globals()[one], list)
        and globals()[one] is globals()[other]]
    return files, {name: globals()[name] for name in held}, same
print(_look())
"""
)

File = tuple[str, int, str]
"""Kind, permissions, and the text of a file or the target of a link."""

Seen = tuple[dict[str, File], dict[str, object], list[tuple[str, str]]]
"""Files, variables, and which variables are one list."""


@dataclass
class Model:
    """What a session must hold."""

    files: dict[str, File] = field(default_factory=dict)
    variables: dict[str, object] = field(default_factory=dict)

    def copy(self) -> "Model":
        return copy.deepcopy(self)

    def seen(self) -> Seen:
        held = sorted(name for name in self.variables)
        lists = [name for name in held if isinstance(self.variables[name], list)]
        same = [(a, b) for a in lists for b in lists if a < b and self.variables[a] is self.variables[b]]
        return self.files, self.variables, same

    def file_changes(self, before: "Model") -> FileChanges:
        """Return how the files differ from those of another model."""
        old, new = before.files, self.files
        changed = [name for name in old.keys() & new.keys() if old[name] != new[name]]
        return FileChanges(sorted(new.keys() - old.keys()), sorted(changed), sorted(old.keys() - new.keys()))


@dataclass(frozen=True)
class Change:
    """One line of a cell, and what it does to a model."""

    code: str
    apply: Callable[[Model], None]
    assigned: str = ""
    """Variable that it binds again, perhaps to an equal value."""


def _write(name: str, text: str) -> Change:
    def apply(model: Model) -> None:
        kind, mode, _ = model.files.get(name, ("", 0, ""))
        model.files[name] = "file", mode if kind == "file" else NEW_MODE, text

    return Change(
        f"_ = _os.path.islink({name!r}) and _os.unlink({name!r})\n"
        f"with open({name!r}, 'w') as _f: _ = _f.write({text!r})",
        apply,
    )


def _append(name: str, text: str) -> Change:
    def apply(model: Model) -> None:
        kind, mode, old = model.files.get(name, ("", 0, ""))
        if kind == "file":
            model.files[name] = kind, mode, old + text

    return Change(
        f"if _os.path.isfile({name!r}) and not _os.path.islink({name!r}):\n"
        f"    with open({name!r}, 'a') as _f: _ = _f.write({text!r})",
        apply,
    )


def _delete(name: str) -> Change:
    return Change(
        f"_ = _os.path.lexists({name!r}) and _os.unlink({name!r})", lambda model: void(model.files.pop(name, None))
    )


def _rename(name: str, other: str) -> Change:
    def apply(model: Model) -> None:
        if name in model.files:
            model.files[other] = model.files.pop(name)

    return Change(f"_ = _os.path.lexists({name!r}) and _os.replace({name!r}, {other!r})", apply)


def _chmod(name: str, mode: int) -> Change:
    def apply(model: Model) -> None:
        kind, _, text = model.files.get(name, ("", 0, ""))
        if kind == "file":
            model.files[name] = kind, mode, text

    return Change(
        f"_ = _os.path.isfile({name!r}) and not _os.path.islink({name!r}) and _os.chmod({name!r}, {mode})", apply
    )


def _link(name: str, target: str) -> Change:
    def apply(model: Model) -> None:
        model.files[name] = "link", 0, target

    return Change(
        f"_ = _os.path.lexists({name!r}) and _os.unlink({name!r}); _os.symlink({target!r}, {name!r})",
        apply,
    )


def _log(text: str) -> Change:
    """Write to a file that stays open. No other change touches it."""

    def apply(model: Model) -> None:
        _, mode, old = model.files.get("log", ("", NEW_MODE, ""))
        model.files["log"] = "file", mode, old + text

    return Change(
        f"log = globals().get('log') or open('log', 'a')\n_ = log.write({text!r}); log.flush()", apply, assigned="log"
    )


def _assign(name: str, value: object) -> Change:
    def apply(model: Model) -> None:
        model.variables[name] = copy.deepcopy(value)

    return Change(f"{name} = {value!r}", apply, assigned=name)


def _alias(name: str, other: str) -> Change:
    def apply(model: Model) -> None:
        if other in model.variables:
            model.variables[name] = model.variables[other]

    return Change(f"if {other!r} in globals(): {name} = {other}", apply, assigned=name)


def _extend(name: str, value: int) -> Change:
    def apply(model: Model) -> None:
        held = model.variables.get(name)
        if isinstance(held, list):
            held.append(value)

    return Change(f"if isinstance(globals().get({name!r}), list): {name}.append({value})", apply)


def _forget(name: str) -> Change:
    return Change(f"_ = globals().pop({name!r}, None)", lambda model: void(model.variables.pop(name, None)))


def void(_: object) -> None:
    """Drop a value."""


# Files are small and of few sizes, so that stat alone often cannot tell two of them apart.
PATHS = st.sampled_from(["a", "b", "c/d", "c/e"])
TEXTS = st.sampled_from(["", "1", "2", "3"])
MODES = st.sampled_from([0o600, 0o644, 0o755])
NAMES = st.sampled_from(["x", "y", "z"])
VALUES = st.one_of(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=2))

CHANGES = st.one_of(
    st.builds(_write, PATHS, TEXTS),
    st.builds(_append, PATHS, TEXTS),
    st.builds(_delete, PATHS),
    st.builds(_rename, PATHS, PATHS),
    st.builds(_chmod, PATHS, MODES),
    st.builds(_link, PATHS, PATHS),
    st.builds(_log, TEXTS),
    st.builds(_assign, NAMES, VALUES),
    st.builds(_alias, NAMES, NAMES),
    st.builds(_extend, NAMES, st.integers(0, 9)),
    st.builds(_forget, NAMES),
)
CELLS = st.lists(CHANGES, min_size=1, max_size=4)
INDEXES = st.integers(0, MAX_SESSIONS - 1)
SAVES = st.sampled_from(["first", "second"])


class One:
    """A session, its model, and the models of its checkpoints."""

    def __init__(self, session: Session, model: Model) -> None:
        self.session = session
        self.model = model
        self.checkpoints: dict[str, Model] = {}


class SessionMachine(RuleBasedStateMachine):
    """Sessions of one server. Each rule is one request, and all sessions are looked at after it."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self._sessions: list[One] = []
        self._saved: dict[str, Model] = {}
        self._count = 0

    def teardown(self) -> None:
        for one in self._sessions:
            one.session.close()
        for name in self._saved:
            self._client.delete_snapshot(name)

    def _name(self) -> str:
        self._count += 1
        return f"s{self._count}"

    def _one(self, index: int) -> One:
        return self._sessions[index % len(self._sessions)]

    def _held(self, one: One) -> str:
        """Return how a trial treats connections: they can be held in a sandbox only."""
        return "held" if one.session.info().isolation == "sandbox" else "allowed"

    @initialize()
    def create(self) -> None:
        self._sessions.append(One(self._client.session(self._name(), create=True), Model()))
        assert run(self._sessions[0].session, BEGIN).files == FileChanges()

    # --- cells ---

    @rule(index=INDEXES, cell=CELLS)
    def execute(self, index: int, cell: list[Change]) -> None:
        one = self._one(index)
        before = one.model.copy()
        result = run(one.session, code_of(cell))
        apply(cell, one.model)
        wanted, told = one.model.file_changes(before), result.files
        assert told is not None
        assert (told.created, told.deleted) == (wanted.created, wanted.deleted)
        # A file that was written with the text it had counts too.
        assert set(wanted.changed) <= set(told.changed) <= before.files.keys() & one.model.files.keys()

    @rule(index=INDEXES, name=PATHS, text=TEXTS)
    def upload(self, index: int, name: str, text: str) -> None:
        """Write a file between two cells."""
        one = self._one(index)
        if one.model.files.get(name, ("file",))[0] == "file":
            one.session.write_file(name, text)
            one.model.files[name] = "file", NEW_MODE, text

    @rule(index=INDEXES)
    def kill(self, index: int) -> None:
        one = self._one(index)
        result = one.session.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        assert result.status == "exit"
        one.model.variables.clear()

    # --- checkpoints and copies ---

    @rule(index=INDEXES, name=SAVES)
    def checkpoint(self, index: int, name: str) -> None:
        one = self._one(index)
        assert [each for each in one.session.checkpoint(name).notices if "files" in each] == []
        one.checkpoints[name] = one.model.copy()

    @rule(index=INDEXES, name=SAVES)
    def rollback(self, index: int, name: str) -> None:
        one = self._one(index)
        if name in one.checkpoints:
            before, one.model = one.model, one.checkpoints[name].copy()
            back = one.session.rollback(name)
            assert back.files == one.model.file_changes(before)

    @rule(index=INDEXES, name=SAVES)
    def diff(self, index: int, name: str) -> None:
        one = self._one(index)
        if name in one.checkpoints:
            found = one.session.diff(name)
            assert found.files is not None
            assert file_diffs(found.files) == one.model.file_changes(one.checkpoints[name])
            if found.variables is not None:
                check_variables(found.variables, one.checkpoints[name], one.model, {"x", "y", "z"})

    @precondition(lambda self: len(self._sessions) < MAX_SESSIONS)
    @rule(index=INDEXES)
    def fork(self, index: int) -> None:
        one = self._one(index)
        self._sessions.append(One(one.session.fork(self._name()), one.model.copy()))

    @precondition(lambda self: len(self._sessions) > 1)
    @rule(index=INDEXES)
    def end(self, index: int) -> None:
        one = self._one(index)
        self._sessions.remove(one)
        one.session.close()

    @rule(index=INDEXES, cell=CELLS, commit=st.booleans())
    def trial(self, index: int, cell: list[Change], commit: bool) -> None:
        one = self._one(index)
        result = one.session.trial(code_of(cell), network=self._held(one))
        assert (result.status, result.error) == ("ok", None), result
        assert result.trial is not None
        effect = result.trial.effect
        assert effect is not None
        after = one.model.copy()
        apply(cell, after)
        assert effect.files is not None
        assert file_diffs(effect.files) == after.file_changes(one.model)
        check_variables(effect.variables, one.model, after, {each.assigned for each in cell})
        if commit:
            done = one.session.commit(result.trial.name)
            assert done.files == after.file_changes(one.model)
            one.model = after
        else:
            one.session.discard(result.trial.name)

    # --- saves ---

    @rule(index=INDEXES, name=SAVES)
    def save(self, index: int, name: str) -> None:
        one = self._one(index)
        saved = one.session.save(name)
        assert saved.files == len(one.model.files)
        self._saved[name] = one.model.copy()

    @precondition(lambda self: len(self._sessions) < MAX_SESSIONS)
    @rule(name=SAVES)
    def load(self, name: str) -> None:
        if name in self._saved:
            self._sessions.append(One(self._client.load(name, self._name()), self._saved[name].copy()))

    @invariant()
    def every_session_is_as_its_model(self) -> None:
        for one in self._sessions:
            assert ast.literal_eval(run(one.session, LOOK).stdout) == one.model.seen()


def code_of(cell: list[Change]) -> str:
    return BEGIN + "\n".join(each.code for each in cell)


def apply(cell: list[Change], model: Model) -> None:
    for each in cell:
        each.apply(model)


def run(session: Session, code: str) -> Result:
    result = session.run(code)
    assert (result.status, result.error) == ("ok", None), result
    return result


def file_diffs(found: list[FileDiff]) -> FileChanges:
    return FileChanges(
        *([each.path for each in found if each.change == change] for change in ("created", "changed", "deleted"))
    )


def check_variables(found: list[VariableDiff], before: Model, after: Model, assigned: set[str]) -> None:
    """Check the variables that are told to differ. One that was bound to an equal value may be among them."""
    told = {
        change: {each.name for each in found if each.change == change and each.name != "log"}
        for change in ("created", "changed", "deleted")
    }
    old, new = before.variables, after.variables
    assert (told["created"], told["deleted"]) == (new.keys() - old.keys(), old.keys() - new.keys())
    differing = {name for name in old.keys() & new.keys() if old[name] != new[name]}
    assert differing <= told["changed"] <= differing | assigned


def run_sequences(server: Server, count: int, steps: int, chosen: int | None = None) -> None:
    """Run so many sequences of operations: those of a seed, or the same ones in each run."""
    with Client(server.url, server.token) as client:

        def machine() -> SessionMachine:
            return SessionMachine(client)

        run_state_machine_as_test(
            machine if chosen is None else seed(chosen)(machine),
            settings=settings(
                max_examples=count,
                stateful_step_count=steps,
                derandomize=chosen is None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
