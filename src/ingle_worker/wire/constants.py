"""Numbers that the host and the guest agree on. Both always have the same version."""

FAILED_EXIT_CODE = 70
"""Exit code of a guest process that cannot continue: a worker that lost its wire, an init that failed."""

NOT_STARTED_EXIT_CODE = 127
"""Exit code of a program that could not be executed, as in shells."""

MAX_WORKERS_PER_INIT = 8192
"""Maximum number of workers in the life of one init. Each has a slot in shared memory, free until it is written."""

MAX_PROMPT_CHARS = 10_000
"""Characters of a prompt that are sent and shown: its end, which holds the question."""

PROXY_PORT = 61080
"""Port on the loopback interface of a sandbox where the host's proxy listens.

Linux assigns ports only up to 60999 by itself, and no well-known program listens on this one.
"""

HOMES = ("/home/user", "/home/daytona")
"""Paths at which a sandbox can show a session's own folder. Clients of other servers have them in their code."""
