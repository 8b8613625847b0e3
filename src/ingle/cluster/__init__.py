"""Many machines: one agent on each, gateways that reach their sessions, and a directory of the agents.

An agent serves the node of its machine over frames. A gateway is a service whose node is a `ClusterNode`.
"""
