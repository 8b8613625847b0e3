"""The manifest of what ingle promises: every id of docs/contract.md, and whether a test proves it yet.

A test claims ids with ``@pytest.mark.req("cell.await", ...)``. ``test_requirements.py`` holds contract,
manifest and tests against one another, in every direction. An entry that is ``later`` names the part of the code
that is still missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["proven", "later"]


@dataclass(frozen=True)
class Requirement:
    id: str
    #: heading in docs/contract.md under which the promise stands
    source: str
    state: State
    #: why no test proves it yet; empty for what is proven
    reason: str = ""


def _proven(source: str, *ids: str) -> tuple[Requirement, ...]:
    return tuple(Requirement(id, source, "proven") for id in ids)


def _later(source: str, reason: str, *ids: str) -> tuple[Requirement, ...]:
    return tuple(Requirement(id, source, "later", reason) for id in ids)


REQUIREMENTS: tuple[Requirement, ...] = (
    *_proven(
        "2. Cells",
        "cell.one-unit",
        "cell.compile-first",
        "cell.last-value",
        "cell.await",
        "cell.future",
        "cell.shadow",
        "cell.clean-globals",
        "cell.traceback",
        "cell.last-exc",
        "cell.pythons",
        "cell.cwd",
        "cell.envs",
        "cell.busy",
        "cell.one-off",
        "cell.once",
    ),
    *_proven(
        "3. Output",
        "out.all",
        "out.order",
        "out.bytes",
        "out.live",
        "out.bounded",
        "out.attributed",
        "out.clean",
    ),
    *_proven(
        "4. Standard input",
        "in.surfaces",
        "in.answer",
        "in.boundary",
        "in.background",
        "in.not-asked",
        "in.pager",
    ),
    *_proven(
        "5. Waiting, interrupting, ending",
        "wait.budget",
        "wait.cursor",
        "limit.timeout",
        "int.cell",
        "int.idle",
        "int.handler",
        "exit.clean",
        "exit.crash",
        "exit.linger",
        "exit.tree",
        "idle.expire",
    ),
    *_proven(
        "6. Rich results",
        "rich.mime",
        "rich.figures",
        "rich.tables",
    ),
    *_proven("6. Rich results", "rich.magics", "rich.vars", "rich.complete", "rich.inspect"),
    *_proven("7. State that is not lost", "state.stdlib", "state.clear", "state.save", "state.load"),
    *_proven("7. State that is not lost", "state.fork", "state.rollback", "state.hibernate", "state.restart"),
    *_proven(
        "8. Shell",
        "shell.fallback",
        "shell.status",
        "shell.manage",
        "shell.bounds",
        "shell.session",
    ),
    *_proven(
        "9. Interfaces",
        "mcp.eras",
        "mcp.handles",
        "mcp.readable",
        "mcp.patient",
        "mcp.stdout",
    ),
    *_proven("9. Interfaces", "http.seed", "http.stream", "http.problems", "log.config"),
    *_proven("10. Safety", "safe.token", "safe.input"),
    *_proven("10. Safety", "safe.isolation"),
    *_proven("11. Files and effects", "files.state", "files.changes", "files.archive", "diff.state"),
    *_proven("11. Files and effects", "trial.commit", "trial.discard", "trial.effect", "try.best"),
    *_proven("11. Files and effects", "fork.adopt", "merge.names", "probe.clean", "failure.kept"),
    *_proven("12. Environments and grants", "env.named", "env.shell", "env.hint", "grant.live"),
    *_proven("12. Environments and grants", "batch.map", "scale.bounds", "scale.fair", "scale.idle", "scale.reuse"),
    *_proven(
        "13. Tools",
        "tools.call",
        "tools.find",
        "tools.policy",
        "tools.cancel",
        "tools.secrets",
        "tools.client",
    ),
    *_proven("14. Console, terminal, notebooks", "web.signin", "web.live", "web.safe", "web.flood"),
    *_proven("14. Console, terminal, notebooks", "term.attach", "nb.export"),
    *_proven("15. Compatible interfaces", "compat.sandboxes", "compat.daytona", "compat.jupyter"),
    *_proven("15. Compatible interfaces", "compat.fusion", "compat.errors"),
    *_proven("16. Many machines", "node.same", "node.lost", "node.once", "node.drain"),
    *_proven("16. Many machines", "store.remote"),
    *_proven("17. GPU", "gpu.grant", "gpu.copies", "gpu.freed"),
)
