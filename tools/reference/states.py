"""Page of the states of a session, from the one table of legal moves."""

from ingle_worker.wire import states

HEAD = """\
# The states of a session

This page is generated from `src/ingle_worker/wire/states.py` by `python tools/reference`.

A session is in exactly one state.
The table lists all moves.
Any other move is a bug of ingle and raises `IllegalMove`.

| From | To | When |
|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    rows = [f"| `{old}` | `{new}` | {when} |\n" for old, moves in states.MOVES.items() for new, when in moves.items()]
    return HEAD + "".join(rows)
