"""Several codes, each tried in a copy of the session at the same time. One of the copies may become the session."""

import asyncio
import math

from ingle.events import Result
from ingle.requests import NewCell
from ingle.sessions.forks.trials import Copy, Trials
from ingle.trials import Tried, Variant
from ingle_worker.wire import states

BUDGET = "budget"
"""Status of a variant that had not ended when the time was over."""

MAX_TEXT_CHARS = 2000


async def try_codes(
    trials: Trials, codes: list[NewCell], score: str | None, keep: str, budget: float, network: str
) -> Tried:
    """Run each code in a copy of the session. The best, or the first that succeeds, becomes the session."""
    async with trials.turn(network) as cell:
        copies = await trials.copies(len(codes), network)
        running = [
            asyncio.create_task(_run(index, copy, code, score))
            for index, (copy, code) in enumerate(zip(copies, codes, strict=True))
        ]
        try:
            variants = await _wait(running, keep, budget)
            chosen = _choose(variants, keep, scored=score is not None)
            notices = []
            if chosen is not None:
                text = f"variant {chosen} of {len(codes)} is now the session, with its cell {cell}"
                winner = copies.pop(chosen)
                await trials.take_over(winner, text, cell)
                notices.append(text)
            return Tried(variants, chosen, notices)
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            await asyncio.gather(*(trials.drop(copy) for copy in copies))


async def _wait(running: "list[asyncio.Task[Variant]]", keep: str, budget: float) -> list[Variant]:
    now = asyncio.get_running_loop().time
    began, pending = now(), set(running)
    while pending and (left := began + budget - now()) > 0:
        done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if keep == "first_ok" and any(each.result().status == states.OK for each in done):
            break
    spent = now() - began
    return [
        task.result() if task.done() else Variant(index, BUDGET, execution_time=spent)
        for index, task in enumerate(running)
    ]


async def _run(index: int, copy: Copy, code: NewCell, score: str | None) -> Variant:
    result = await copy.run(code)
    effect = await copy.effect()
    value, error = None, None if result.error is None else f"{result.error.name}: {result.error.value}"
    if score is not None and result.status == states.OK:
        scored = await copy.run(NewCell(f"float(\n{score}\n)"))
        value = _number(scored)
        if scored.error is not None:
            error = f"score: {scored.error.name}: {scored.error.value}"
    return Variant(
        index,
        result.status,
        value,
        result.execution_time,
        effect.memory,
        effect,
        result.stdout[:MAX_TEXT_CHARS],
        None if error is None else error[:MAX_TEXT_CHARS],
    )


def _number(scored: Result) -> float | None:
    """Return a score, if it is a finite number."""
    try:
        value = float((scored.result or {}).get("text/plain", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _choose(variants: list[Variant], keep: str, *, scored: bool) -> int | None:
    """Return the index of the variant that is kept."""
    good = [each for each in variants if each.status == states.OK]
    if keep == "best" and scored:
        rated = [each for each in good if each.score is not None]
        best = max(rated, key=lambda each: (each.score or 0.0, -each.index), default=None)
        return None if best is None else best.index
    return good[0].index if keep != "none" and good else None
