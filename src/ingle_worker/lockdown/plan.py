"""The host's decisions for the sessions of one zygote, read from an inherited file descriptor."""

import json
import os
from typing import Any

from ingle_worker.lockdown import root_fs

MAX_PLAN_BYTES = 1 << 20


class Plan:
    """The host's decisions, decoded. The guest adds only the mounts."""

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
        self.memory: int = plain["memory"]
        self.grouped_memory: bool = plain["grouped_memory"]
        self.devices: list[tuple[str, str]] = [(source, path) for source, path in plain["devices"]]
        self.gpu_driver: str = plain["gpu_driver"]
        self.nice: int = plain["nice"]
        self.memfd: bool = plain["memfd"]
        self.environment: dict[str, str] = plain["environment"]
        self.mounts: root_fs.MountPlan | None = None
        if "mounts" in plain:
            self.mounts = root_fs.MountPlan(*plain["mounts"])


def read_plan(fd: int) -> Plan:
    return Plan(os.pread(fd, MAX_PLAN_BYTES, 0))


def add_mounts(fd: int, mounts: root_fs.MountPlan) -> None:
    """Add the mounts, which cannot be computed after the change of root."""
    plain = json.loads(os.pread(fd, MAX_PLAN_BYTES, 0))
    plain["mounts"] = [mounts.data, mounts.session_binds, mounts.search, mounts.unsafe_search]
    os.pwrite(fd, json.dumps(plain).encode(), 0)
