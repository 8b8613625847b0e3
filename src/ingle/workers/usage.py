"""What a process uses of the machine, by the kernel's word."""

import os
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


def usage(pid: int | None) -> tuple[int | None, float | None]:
    """Resident memory in bytes and seconds of CPU of one process; None where it is not known."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_bytes().split()[1]
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(pages) * PAGE, (int(fields[11]) + int(fields[12])) / TICKS
    except (OSError, IndexError, ValueError):
        return None, None
