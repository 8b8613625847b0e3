"""Generated names of sessions: each says which agent made it, signed for its tenant, so that it needs no claim."""

import re
import secrets

from ingle.cluster.token import ClusterToken
from ingle.requests import session_key

SIGNED = re.compile(r"(?P<own>[0-9a-f]{12}-(?P<agent>[0-9a-f]{8,16}))-(?P<signature>[0-9a-f]{12})")


def make_name(token: ClusterToken, tenant: str, incarnation: str) -> str:
    """Return a random name for a session on this agent."""
    own = f"{secrets.token_hex(6)}-{incarnation}"
    return f"{own}-{token.sign(session_key(tenant, own))}"


def agent_of(token: ClusterToken, key: str) -> str | None:
    """Return the incarnation of the agent that made a session; None if its name was chosen, or not signed by us."""
    tenant, _, name = key.rpartition("/")
    found = SIGNED.fullmatch(name)
    if found is None or token.sign(session_key(tenant, found["own"])) != found["signature"]:
        return None
    return found["agent"]
