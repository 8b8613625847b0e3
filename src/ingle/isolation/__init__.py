"""Isolation of sessions: levels, the operator's policy, network egress and resource limits."""
