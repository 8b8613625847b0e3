"""Writes docs/states.md from the one table of legal moves: `python docs/make_states.py`."""

from pathlib import Path

from ingle_worker.wire import states

PAGE = Path(__file__).with_name("states.md")

HEAD = """\
# The states of a session

A session is in exactly one state. These are all the moves there are; anything else is a mistake of ingle's own and
raises `IllegalMove`. The table is made from `src/ingle_worker/wire/states.py` by `python docs/make_states.py`.

| From | To | When |
|---|---|---|
"""


def page() -> str:
    """The whole page, as it should be."""
    rows = [f"| `{old}` | `{new}` | {when} |\n" for old, moves in states.MOVES.items() for new, when in moves.items()]
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
