"""Numbers that the host and the guest have to agree on. Host and guest are always of one version."""

FAILED_EXIT_CODE = 70
"""Exit code of a process of the guest that cannot go on: a worker that lost its wire, an init that failed."""

NOT_STARTED_EXIT_CODE = 127
"""Exit code of a program that could not be executed, as shells have it."""

MAX_WORKERS_PER_INIT = 8192
"""Workers that one init can have had. Each has a place in shared memory, which costs nothing until it is written to."""

MAX_PROMPT_CHARS = 10_000
"""Characters of a prompt that are sent and shown: its end, where the question stands."""

PROXY_PORT = 61080
"""Port on the loopback interface of a sandbox where the host's proxy listens.

It is above those that Linux gives out itself (up to 60999), and no well-known program listens there.
"""
