"""What a process uses of the machine, by the kernel's word."""

import os

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


def usage(pid: int | None) -> tuple[int | None, float | None]:
    """Resident memory in bytes and seconds of CPU of one process; None where it is not known."""
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        return int(fields[21]) * PAGE, (int(fields[11]) + int(fields[12])) / TICKS
    except (OSError, IndexError, ValueError):
        return None, None


def _read(path: str) -> bytes:
    # Bare: a file object for a hundred bytes takes three times as long, and every new session is asked.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def proportional_memory(pid: int | None) -> int | None:
    """Bytes of one process: its own pages, and its share of those it has in common with others. Blocks for as long as
    the kernel counts, which is some milliseconds for a gigabyte."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        return None
    return None
