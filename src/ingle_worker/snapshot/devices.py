"""Data of the session on GPUs: whether this process uses a driver, and copies of the data in host memory.

A driver does not let a forked process use it once its parent has. So the session itself copies its device data to host
memory before it is forked. A copy of the process is then saved from there and never calls the driver.
"""

import os
import sys
import types
from collections.abc import Callable
from typing import Any

from ingle_worker.snapshot import definitions, groups, reduce_torch

DRIVER_FILES = ("/dev/nvidia", "/dev/kfd")
"""Beginnings of the paths that a driver's library keeps open."""


class Refused(Exception):
    """The device data cannot be copied. The message says why."""


def in_use() -> bool:
    """Return whether this process, or the one that it is a copy of, has initialised a GPU's driver."""
    return are_held() or _torch_has_begun() or bool(_driver_files())


def are_held() -> bool:
    """Return whether this process has copies of its device data in host memory, as a copy of a session has."""
    return reduce_torch.host_copies is not None


def hold(main: types.ModuleType, room: int, announce: Callable[[int], None]) -> None:
    """Copy all device data of the session to host memory. Raise Refused if that fails or needs more than `room` bytes.

    `announce` is told the size before the copying begins. A negative `room` is no limit.
    """
    if are_held():
        return
    torch: Any = sys.modules.get("torch")
    if torch is None or not _torch_has_begun():
        reduce_torch.host_copies = reduce_torch.HostCopies([])
        return
    found = groups.find(vars(main).copy(), (vars(main), sys.modules)).of_torch
    definitions.forget()
    try:
        copies = reduce_torch.HostCopies(found)
    except Exception as error:  # library code
        raise Refused(f"its GPU data cannot be found: {_first_line(error)}") from None
    if 0 <= room < copies.size:
        need, left = _megabytes(copies.size), _megabytes(room)
        raise Refused(
            f"its GPU data needs {need} of memory, and {left} are left for it; delete some of it, or raise limit_memory"
        )
    announce(copies.size)
    try:
        copies.fill()
    except MemoryError:
        raise Refused("there is no memory for a copy of its GPU data; delete some of it") from None
    except Exception as error:  # library code: a broken context shows here, and what is on the GPU is lost
        copies.why_missing = f"it is on a GPU, and cannot be read from there: {_first_line(error)}"
    reduce_torch.host_copies = copies


def release() -> None:
    """Free the host memory, in the session itself."""
    reduce_torch.host_copies = None


def leave_driver() -> None:
    """Close the driver's files in a copy of the process. As long as they are open, the card's memory stays in use."""
    for fd in _driver_files():
        try:
            os.close(fd)
        except OSError:
            continue


def _torch_has_begun() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return cuda is not None and bool(cuda.is_initialized())
    except Exception:  # another module of this name
        return False


def _driver_files() -> list[int]:
    """Return the descriptors of the driver's files."""
    found = []
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return []
    for name in names:
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith(DRIVER_FILES):
                found.append(int(name))
        except OSError:
            continue
    return found


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _megabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
