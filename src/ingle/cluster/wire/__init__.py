"""Frames between gateways and agents, and what they mean at both ends."""
