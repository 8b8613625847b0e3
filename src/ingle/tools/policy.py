"""Policy of tools: whether a call is allowed, denied, or a person is asked. Pure."""

from fnmatch import fnmatchcase

from ingle.errors import InvalidRequest
from ingle.tools.shapes import ALLOW, ASK, DENY, NewServer, ToolSpec

HINTS = "hints"
"""Ask before a tool that says it may destroy something; allow all others."""

POLICIES = (ALLOW, ASK, DENY)
READ_ONLY, DESTRUCTIVE = "@read_only", "@destructive"


def check(name: str, server: NewServer) -> None:
    """Raise an error for a rule that means nothing."""
    for where, policy in (*server.rules.items(), ("policy", server.policy)):
        if policy is not None and policy not in (*POLICIES, HINTS):
            raise InvalidRequest(f"{where!r} of the server {name!r} is {policy!r}; it is one of {', '.join(POLICIES)}")


def decide(tool: ToolSpec, server: NewServer, default: str) -> str:
    """Return `allow`, `ask` or `deny`. The most particular rule holds, and the strictest of equals.

    An exact name comes before patterns, patterns before hints, hints before the policy of the server.
    """
    rules = server.rules
    if not rules:
        return _resolve(server.policy or default, tool)
    exact = rules.get(tool.name)
    patterns = [policy for name, policy in rules.items() if name[:1] != "@" and fnmatchcase(tool.name, name)]
    hints = [rules[DESTRUCTIVE]] if tool.destructive and DESTRUCTIVE in rules else []
    if tool.read_only and READ_ONLY in rules:
        hints.append(rules[READ_ONLY])
    for found in ([exact] if exact is not None else [], patterns, hints):
        if found:
            return _resolve(max(found, key=_strictness), tool)
    return _resolve(server.policy or default, tool)


def _resolve(policy: str, tool: ToolSpec) -> str:
    if policy == HINTS:
        return ASK if tool.destructive else ALLOW
    return policy


def _strictness(policy: str) -> int:
    return (ALLOW, HINTS, ASK, DENY).index(policy)
