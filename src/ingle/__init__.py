"""ingle keeps Python alive for agents: live sessions that remember, answer at once, and leave nothing behind."""

__version__ = "0.1.0"
