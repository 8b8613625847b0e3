"""Effect of a trial as text, for a terminal and for models."""

from ingle.files import VariableDiff, VariableState
from ingle.render.diff import short_value
from ingle.render.phrases import size, some
from ingle.trials import Decision, Effect

MAX_NAMED = 10
MAX_DIFF_CHARS = 4000
"""Characters of all diffs together."""


def decision_text(decision: Decision | None) -> str:
    """Return what a policy has decided about a trial, without a full stop."""
    if decision is None:
        return "nothing has changed yet"
    reasons = "; ".join(decision.reasons)
    if decision.committed:
        return f"committed by its policy: {reasons}"
    return f"not committed by its policy, nothing has changed yet: {reasons}"


def effect_text(effect: Effect, *, diffs: bool = True) -> str:
    """Return the effect of a trial, a line for each kind of change, then the diffs of texts."""
    lines = []
    for change in ("created", "changed", "deleted"):
        found = [_variable(each) for each in effect.variables if each.change == change]
        if found:
            lines.append(f"variables {change}: {some(found, MAX_NAMED)}")
    if effect.unknown:
        lines.append(f"variables not compared: {some(effect.unknown, MAX_NAMED)}")
    files = effect.files or []
    for change in ("created", "changed", "deleted"):
        paths = [each.path for each in files if each.change == change]
        if paths:
            lines.append(f"files {change}: {some(paths, MAX_NAMED)}")
    if effect.more_files:
        lines.append(f"and {effect.more_files} more files")
    lines += [f"network: {each.host}, {each.reached} reached, {each.refused} refused" for each in effect.hosts or []]
    if effect.processes:
        lines.append(f"still running: {some(effect.processes, MAX_NAMED)}")
    if effect.threads:
        lines.append(f"threads left: {effect.threads}")
    if effect.ends:
        lines.append(f"a commit ends: {some(effect.ends, MAX_NAMED)}")
    lines += effect.notices
    if not lines:
        lines.append("it changes nothing")
    left = MAX_DIFF_CHARS
    for each in files if diffs else []:
        text = (each.text or "").rstrip("\n")
        if text and len(text) <= left:
            lines.append(text)
            left -= len(text)
    return "\n".join(lines)


def _variable(each: VariableDiff) -> str:
    before, after = _state(each.before), _state(each.after)
    if each.change == "changed" and before != after:
        return f"{each.name} ({before} -> {after})"
    return f"{each.name} ({after or before})"


def _state(state: VariableState | None) -> str:
    if state is None:
        return ""
    value = short_value(state)
    if value is not None:
        return value
    extent = ""
    if state.shape is not None:
        extent = " " + "x".join(map(str, state.shape))
    elif state.length is not None:
        extent = f" of {state.length}"
    large = f", {size(state.size)}" if state.size is not None and state.size > 1024**2 else ""
    return f"{state.type}{extent}{large}"
