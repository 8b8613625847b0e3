"""Tools for code that runs in copies of a session: `trial`, `try_cells` and `inspect_failure`."""

from ingle import errors
from ingle.mcp import arguments, content
from ingle.mcp.content import Answer
from ingle.render.effect import decision_text, effect_text
from ingle.render.model import Text
from ingle.service import Service
from ingle.trials import Tried


async def trial(service: Service, given: arguments.Trial, seconds: float) -> Answer:
    """Run, commit or discard a trial."""
    session = given.session_id
    if given.action == "run":
        if given.code is None:
            raise errors.InvalidRequest("a trial needs code: pass code=…; nothing was done")
        result = await service.trial(
            session, given.code, network=given.network, policy=given.policy, timeout=given.timeout, wait=seconds
        )
        answer = content.of_result(result)
        assert result.trial is not None
        effect = result.trial.effect
        if result.trial.discarded:
            discarded = Text(f"[{result.trial.name} was discarded while its cell ran]")
            return Answer([*answer.parts, discarded], content.data("ingle/trial", result.trial))
        told = "its cell still runs" if effect is None else effect_text(effect)
        text = f"[{result.trial.name}: {decision_text(result.trial.decision)}]\n{told}"
        if result.trial.decision is None or not result.trial.decision.committed:
            text += "\n[next: trial(action='commit'), or 'discard']"
        return Answer([*answer.parts, Text(text)], content.data("ingle/trial", result.trial))
    name = given.trial
    if name is None:
        open_ones = await service.trials(session)
        if not open_ones:
            raise errors.TrialNotFound(session, None, [])
        name = open_ones[0].name
    if given.action == "discard":
        await service.discard(session, name)
        return Answer([Text(f"{name} is discarded; session {session} is as it was.")])
    done = await service.commit(session, name)
    return Answer([Text(f"{done.notice}.")], content.data("ingle/commit", done))


async def try_cells(service: Service, given: arguments.TryCells) -> Answer:
    """Run codes in copies, and keep one."""
    tried = await service.try_cells(
        given.session_id, given.codes, score=given.score, keep=given.keep, budget=given.budget, network=given.network
    )
    return Answer([Text(_tried_text(tried))], content.data("ingle/tried", tried))


async def inspect_failure(service: Service, given: arguments.InspectFailure) -> Answer:
    """Evaluate an expression in a frame of a failed cell."""
    told = await service.inspect_failure(given.session_id, given.expression, cell=given.cell, frame=given.frame)
    frame = told.frame
    value = told.error if told.value is None else told.value
    place = f"[cell {told.cell}, frame {frame.index}: {frame.function}, line {frame.line}; {', '.join(frame.names)}]"
    return Answer([Text(f"{told.output}{value}\n{place}")], content.data("ingle/inspected", told))


def _tried_text(tried: Tried) -> str:
    lines = []
    for each in tried.variants:
        score = "" if each.score is None else f", score {each.score:g}"
        error = "" if each.error is None else f", {each.error}"
        lines.append(f"{each.index}: {each.status}{score}, {each.execution_time:.2f} s{error}")
        if each.stdout:
            lines.append(each.stdout.rstrip("\n"))
    kept = "no variant was kept; the session is as it was" if tried.chosen is None else f"kept {tried.chosen}"
    return "\n".join([*lines, f"[{kept}]"])
