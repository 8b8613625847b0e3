"""GPUs: those of this machine, those that a session is granted, and what it needs to use them.

A card has the number that its driver counts with. NVIDIA's cards have been tried. AMD's are found by the same table
and are untested.
"""

import functools
import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ingle.errors import InvalidRequest, NotGranted
from ingle.grants import OPEN_LEVELS
from ingle_worker.wire import child_variables

AUTO, ALL, NONE = "auto", "all", "none"
CHOICES = f"`{ALL}`, `{NONE}`, or numbers such as `0,1`"

DEVICES = Path("/dev")
NVIDIA_CARDS = Path("/proc/driver/nvidia/gpus")

LDCONFIG = ("/sbin/ldconfig", "-p")
LDCONFIG_SECONDS = 10


@dataclass(frozen=True)
class Driver:
    """A driver, and the names below /dev that its library opens."""

    name: str
    """As the guest knows it, which allows the driver's ioctl requests."""
    card: re.Pattern[str]
    first: int
    """Number in the name of the first card."""
    shared: tuple[str, ...]
    """Nodes that every user of a card needs. They open no card."""
    library: str
    variables: tuple[str, ...]
    """Environment variables that choose among the cards."""


NVIDIA = Driver(
    name="nvidia",
    card=re.compile(r"nvidia(\d+)"),
    first=0,
    shared=("nvidiactl", "nvidia-uvm"),
    library="libcuda.so",
    variables=("CUDA_VISIBLE_DEVICES",),
)
AMD = Driver(
    name="amd",
    card=re.compile(r"dri/renderD(\d+)"),
    first=128,
    shared=("kfd",),
    library="libamdhip64.so",
    variables=("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
)
DRIVERS = (NVIDIA, AMD)


@dataclass(frozen=True)
class Cards:
    """Some cards of one driver."""

    driver: Driver | None = None
    numbers: tuple[int, ...] = ()

    def only(self, numbers: Iterable[int]) -> "Cards":
        chosen = tuple(sorted(set(numbers)))
        return Cards(self.driver if chosen else None, chosen)

    def nodes(self) -> tuple[tuple[str, str], ...]:
        """Return the paths of the device nodes on the host, each with its path in a sandbox."""
        if self.driver is None:
            return ()
        cards = [name for name, number in _found(self.driver).items() if number in self.numbers]
        names = [*cards, *(name for name in self.driver.shared if (DEVICES / name).exists())]
        return tuple((str(DEVICES / name), f"/dev/{name}") for name in names)

    def environment(self) -> dict[str, str]:
        """Return variables with which libraries see these cards and no others."""
        if self.driver is None:
            return {name: "" for driver in DRIVERS for name in driver.variables}
        ids = _nvidia_ids() if self.driver == NVIDIA else {}
        # In a sandbox the first card that can be opened has the number 0. An id means the same card everywhere.
        value = ",".join(ids.get(number, str(number)) for number in self.numbers)
        return dict.fromkeys(self.driver.variables, value)

    def library_folders(self) -> tuple[str, ...]:
        """Return the folders of the driver's libraries. Blocks."""
        return () if self.driver is None else _folders_of(self.driver.library)


@dataclass(frozen=True)
class GpuGrant:
    """The GPUs of one session."""

    cards: Cards = Cards()
    hidden: bool = True
    """Whether the session is kept from all other cards, at least by environment variables."""
    folders: tuple[str, ...] = ()
    """Folders of the driver's libraries, for a confined session to read."""
    memory: int = 0
    """Bytes that torch may take on each card; 0 is no limit."""

    def environment(self) -> dict[str, str]:
        limit = {child_variables.GPU_MEMORY: str(self.memory)} if self.memory and self.cards.numbers else {}
        return {**(self.cards.environment() if self.hidden else {}), **limit}


UNCONFINED = GpuGrant(hidden=False)
"""What code has that may use the whole machine."""


class Gpus:
    """The operator's grant of GPUs, and the check of each request against it."""

    def __init__(self, text: str, memory: int = 0) -> None:
        """`text` is the setting. `auto` takes none from code that is not confined, and gives none to other code.

        `memory`: bytes that torch may take on each card.
        """
        self._memory = memory
        self._all = find()
        self._auto = text == AUTO
        self._granted = self._all if self._auto else read(text, self._all, "--gpu")

    def settle(self, asked: str | None, bound: str | None, level: str) -> GpuGrant:
        """Return the GPUs of a session, or raise. Blocks. `bound` is what the caller's token allows at most."""
        granted = self._granted
        if self._auto and level not in OPEN_LEVELS:
            granted = Cards()
        if bound is not None:
            allowed = read(bound, self._all, "the token's bound gpus", missing=True)
            granted = granted.only(set(granted.numbers) & set(allowed.numbers))
        if asked is None:
            free = self._auto and bound is None and level in OPEN_LEVELS
            return GpuGrant(granted, not free, granted.library_folders(), self._memory)
        wanted = granted if asked == ALL else read(asked, self._all, "gpus")
        refused = sorted(set(wanted.numbers) - set(granted.numbers))
        if refused or (asked == ALL and self._all.numbers and not granted.numbers):
            names = ", ".join(map(str, refused)) or ALL
            raise NotGranted(
                f"the GPU {names} is not granted to this session; leave `gpus` out, or ask the operator for "
                f"--gpu {names.replace(' ', '')}"
            )
        return GpuGrant(wanted, True, wanted.library_folders(), self._memory)

    @property
    def found(self) -> tuple[int, ...]:
        """Return the numbers of this machine's cards."""
        return self._all.numbers

    @property
    def granted(self) -> tuple[int, ...]:
        """Return the numbers of the cards that a confined session may ask for."""
        return () if self._auto else self._granted.numbers

    @property
    def sentence(self) -> str:
        """Return which GPUs there are, and which of them sessions get."""
        if not self._all.numbers:
            return "this machine has no GPU that ingle knows"
        found = ", ".join(map(str, self._all.numbers))
        if self._auto:
            return f"found {found}; confined sessions get none: start the server with --gpu {ALL} to grant them"
        return f"found {found}; sessions get {', '.join(map(str, self._granted.numbers)) or 'none'}"


def find() -> Cards:
    """Return all cards of the first driver that has any."""
    for driver in DRIVERS:
        if cards := _found(driver):
            return Cards(driver, tuple(sorted(cards.values())))
    return Cards()


def read(text: str, known: Cards, where: str, *, missing: bool = False) -> Cards:
    """Return the cards that a text names. Unless they may be missing, each must exist."""
    if text == ALL:
        return known
    if text == NONE:
        return Cards()
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdecimal() for part in parts):
        raise InvalidRequest(f"{where} is {text[:80]!r}; it must be {CHOICES}")
    numbers = {int(part) for part in parts}
    if (absent := sorted(numbers - set(known.numbers))) and not missing:
        there = ", ".join(map(str, known.numbers)) or "none"
        raise InvalidRequest(f"{where} names the GPU {absent[0]}, and this machine has {there}; name one that it has")
    return known.only(numbers & set(known.numbers))


def _found(driver: Driver) -> dict[str, int]:
    """Return the names of a driver's cards below /dev, each with its number."""
    names: list[str] = []
    for folder in ("", "dri/"):
        try:
            names += [folder + name for name in os.listdir(DEVICES / folder)]
        except OSError:
            continue
    matches = {name: driver.card.fullmatch(name) for name in names}
    return {name: int(match[1]) - driver.first for name, match in matches.items() if match is not None}


def _nvidia_ids() -> dict[int, str]:
    """Return the ids of NVIDIA's cards by their numbers, as far as the driver tells them."""
    ids = {}
    for path in NVIDIA_CARDS.glob("*/information"):
        try:
            lines = [line.partition(":") for line in path.read_text().splitlines()]
        except OSError:
            continue
        known = {name.strip(): value.strip() for name, _, value in lines}
        number, name = known.get("Device Minor", ""), known.get("GPU UUID", "")
        # A card that nobody has used yet has question marks as its id.
        if number.isdecimal() and name and "?" not in name:
            ids[int(number)] = name
    return ids


@functools.cache
def _folders_of(library: str) -> tuple[str, ...]:
    """Return the folders in which the linker finds a library, and those that its links lead to."""
    try:
        told = subprocess.run(LDCONFIG, capture_output=True, text=True, timeout=LDCONFIG_SECONDS, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    paths = [line.rpartition("=> ")[2] for line in told.splitlines() if line.strip().startswith(library)]
    folders = {os.path.dirname(each) for path in paths for each in (path, os.path.realpath(path))}
    return tuple(sorted(folders))
