"""Matches lines with a caller's untrusted regular expression.

Python's `re` can take for ever on a short line, blocks the interpreter meanwhile, and cannot be stopped. So patterns
with repetition run in a child process that is killed after a timeout. Others take linear time and run here.
"""

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ingle.errors import InvalidRequest

BATCH_TIMEOUT_SECONDS = 5.0
"""For one batch of lines."""

BATCH_LINES = 2000

Match = Callable[[list[str]], Awaitable[list[bool]]]


@dataclass(frozen=True)
class Matcher:
    match: Match
    """Return for each line whether it matches."""
    anywhere: re.Pattern[str] | None = None
    """If this pattern is not found in a text of many lines, no line matches. One search is much faster."""

    def absent(self, text: str, start: int, end: int) -> bool:
        return self.anywhere is not None and self.anywhere.search(text, start, end) is None


_MATCHER = """
import json, re, sys
search = re.compile(json.loads(sys.stdin.readline())).search
for batch in sys.stdin:
    print(json.dumps([search(line) is not None for line in json.loads(batch)]), flush=True)
"""


@asynccontextmanager
async def matcher(grep: str) -> AsyncIterator[Matcher]:
    """Provide a matcher for a pattern. Raises InvalidRequest if the pattern is invalid."""
    try:
        pattern = re.compile(grep)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidRequest(f"grep is not a regular expression: {error}; correct it") from None

    async def here(lines: list[str]) -> list[bool]:
        return [pattern.search(line) is not None for line in lines]

    if not re.search(r"[*+?{]|\\[0-9]", grep):
        # Anchors and look-arounds can match differently in many lines than in one.
        yield Matcher(here, None if re.search(r"[\^$]|\(\?|\\[AZbB]", grep) else pattern)
        return
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-ISc",
        _MATCHER,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=1 << 20,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    ours, theirs = process.stdin, process.stdout

    async def there(lines: list[str]) -> list[bool]:
        answers: list[bool] = []
        try:
            async with asyncio.timeout(BATCH_TIMEOUT_SECONDS):
                for start in range(0, len(lines), BATCH_LINES):
                    ours.write(json.dumps(lines[start : start + BATCH_LINES]).encode() + b"\n")
                    await ours.drain()
                    answers += json.loads(await theirs.readline())
        except TimeoutError:
            raise InvalidRequest(
                f"grep takes more than {BATCH_TIMEOUT_SECONDS:g} s on some lines; "
                "use a simpler pattern, without nested repetition"
            ) from None
        return answers

    try:
        ours.write(json.dumps(grep).encode() + b"\n")
        yield Matcher(there)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        ours.close()
        await process.wait()
