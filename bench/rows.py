"""Rows of a bench: what was measured, and the target that it is held to."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.measure import median
from ingle.service import Service


@dataclass
class Row:
    what: str
    values: list[float]
    unit: str
    most: float | None = None
    """The target for the median."""

    @property
    def met(self) -> bool | None:
        return None if self.most is None else median(self.values) <= self.most


Subject = Callable[[Service, int], Awaitable[list[Row]]]


async def timed(times: list[float], work: Awaitable[object], per: float = 1000.0) -> None:
    began = time.perf_counter()
    await work
    times.append((time.perf_counter() - began) * per)
