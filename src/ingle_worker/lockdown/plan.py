"""What the host has decided for the sessions of one zygote, read from a descriptor that it passed on."""

import json
import os
from typing import Any

from ingle_worker.lockdown import root_fs

MAX_PLAN = 1 << 20


class Plan:
    """What the host has decided, as it comes: the guest adds nothing of its own."""

    def __init__(self, text: bytes) -> None:
        plain: dict[str, Any] = json.loads(text)
        self.level: str = plain["level"]
        self.network: str = plain["network"]
        self.data_folder: str = plain["data_folder"]
        self.granted: list[tuple[str, bool]] = [(path, writable) for path, writable in plain["granted"]]
        self.tmp_size: int = plain["tmp_size"]
        self.processes: int = plain["processes"]
        self.files: int = plain["files"]
        self.file_size: int = plain["file_size"]
        self.data: int = plain["data"]
        self.nice: int = plain["nice"]
        self.memfd: bool = plain["memfd"]
        self.environment: dict[str, str] = plain["environment"]
        self.places: root_fs.Places | None = None
        if "places" in plain:
            self.places = root_fs.Places(*plain["places"])


def read_plan(fd: int) -> Plan:
    return Plan(os.pread(fd, MAX_PLAN, 0))


def add_places(fd: int, places: root_fs.Places) -> None:
    """Hand on what was found out before the root changed."""
    plain = json.loads(os.pread(fd, MAX_PLAN, 0))
    plain["places"] = [places.data, places.later, places.search, places.aside]
    os.pwrite(fd, json.dumps(plain).encode(), 0)
