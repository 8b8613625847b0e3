"""Ray as the control plane: where agents run, and who is alive. Bytes of sessions never go through Ray.

    gateway ── pipe ── raylink ── Ray ── actor ── watchdog ── agent ── sessions

Two modules import Ray: `raylink`, a child process of the gateway, and `actor`, which runs in a worker of Ray. Neither
the gateway nor an agent has Ray in its process, and both go on when Ray's head has ended.
"""

RESOURCE = "ingle_node"
"""Resource that a node of Ray offers once. An agent takes it, so that a node has one agent."""

NAMESPACE = "ingle"
"""Namespace of actors and of keys in the head's store."""

AGENT_KEY = "agent/"
"""Prefix of keys with an agent's address and the count of its renewals."""

DRAINING_KEY = "draining/"
"""Prefix of keys that name nodes which get no more sessions."""

TARGET_KEY = "target"
"""Key of the number of agents that was asked for."""
