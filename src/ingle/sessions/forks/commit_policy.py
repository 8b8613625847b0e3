"""Decides by a policy whether a trial is committed by itself. Pure."""

from ingle.events import Result
from ingle.render.phrases import size, some
from ingle.requests import CommitPolicy
from ingle.trials import Decision, Effect
from ingle_worker.wire import states

MAX_NAMED = 5


def decide(policy: CommitPolicy, result: Result, effect: Effect, granted: list[str]) -> Decision:
    """Return whether all rules are met, and the rules that are met or not. What is not known meets no rule.

    `granted` are the files of the effect that lie in granted folders.
    """
    rules = [
        _status(result),
        _ends(effect),
        _network(policy, effect),
        *_files(policy, effect, granted),
        _variables(policy, effect),
    ]
    broken = [reason for met, reason in rules if not met]
    return Decision(not broken, broken or [reason for _, reason in rules])


Rule = tuple[bool, str]
"""Whether a rule is met, and a clause about it."""


def _status(result: Result) -> Rule:
    if result.status != states.OK:
        return False, f"the cell did not succeed: its status is {result.status}"
    return True, "the cell succeeded"


def _ends(effect: Effect) -> Rule:
    if effect.ends:
        return False, f"a commit would end {some(effect.ends, MAX_NAMED)}"
    return True, "a commit ends nothing"


def _network(policy: CommitPolicy, effect: Effect) -> Rule:
    if policy.network == "any":
        return True, "any host may be asked for"
    if effect.hosts is None:
        return False, "it is not known which hosts the cell asked for (network)"
    if effect.hosts:
        return False, f"the cell asked for {some([each.host for each in effect.hosts], MAX_NAMED)} (network)"
    return True, "no host was asked for"


def _files(policy: CommitPolicy, effect: Effect, granted: list[str]) -> list[Rule]:
    if effect.files is None or effect.more_files:
        return [(False, "not all files that differ are known (files)")]
    deleted = [each.path for each in effect.files if each.change == "deleted"]
    total = sum(each.after.size for each in effect.files if each.after is not None)
    rules: list[Rule] = []
    if policy.files == "none" and effect.files:
        rules.append((False, f"files differ: {some([each.path for each in effect.files], MAX_NAMED)} (files)"))
    elif policy.files == "own" and granted:
        rules.append((False, f"files of granted folders differ: {some(granted, MAX_NAMED)} (files)"))
    else:
        where = {"none": "no file differs", "own": "files differ in the own folder only", "any": "any file may differ"}
        rules.append((True, where[policy.files]))
    if deleted and not policy.deletes:
        rules.append((False, f"files are deleted: {some(deleted, MAX_NAMED)} (deletes)"))
    fits = total <= policy.bytes
    said = f"{size(total)} are written, of at most {size(policy.bytes)}"
    rules.append((fits, said if fits else f"{said} (bytes)"))
    return rules


def _variables(policy: CommitPolicy, effect: Effect) -> Rule:
    if policy.variables == "any":
        return True, "any variable may differ"
    names = [each.name for each in effect.variables if policy.variables == "none" or each.change != "created"]
    names += effect.unknown
    if names:
        return False, f"variables differ, or may: {some(names, MAX_NAMED)} (variables)"
    return True, "no variable differs" if policy.variables == "none" else "variables were only created"
