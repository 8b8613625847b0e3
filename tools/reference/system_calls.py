"""Page of the system calls of a session, from the tables of the filter."""

from ingle_worker.lockdown import seccomp, syscall_table

HEAD = """\
# The system calls of a session

This page is generated from `src/ingle_worker/lockdown/syscall_table.py` by `python tools/reference`.

At `restricted` and `sandbox` a filter stands between a session and the kernel.
The filter is an allow-list: a call that is not listed does not exist for a session.
The list was checked against the calls of Linux 6.18; newer calls are refused.
Calls by the numbers of another machine (i386, x32) are refused too.
A star marks calls that are allowed with some arguments only; they are explained below.

## Let through

"""

RULES = """
## Only with some arguments

| call | what of it is let through |
|---|---|
| `ioctl` | terminals, what is to be read, not to block, addresses of interfaces, copies that share their blocks. Not: keys pressed for somebody (`TIOCSTI`), the console, line disciplines, and whatever a file system or a driver has of its own |
| `fcntl` | flags, locks, owners, seals, hints. Not: leases, which make others wait (`F_SETLEASE`), `F_NOTIFY`, larger pipes |
| `prctl` | what changes the process itself. Not: dispatch of its calls, core scheduling, its memory's layout, merging of pages |
| `clone` | processes and threads. Not: namespaces |
| `socket`, `socketpair` | unix sockets; TCP, UDP and echo requests; netlink for routes. Not: raw, packet, VSOCK and all other families |
| `setsockopt` | most. Not: programs on a socket (`SO_ATTACH_FILTER` and its like), TLS and signatures in the kernel (`TCP_ULP`, `TCP_MD5SIG`, `TCP_AO`), `UDP_ENCAP`, `IPV6_ADDRFORM`; before Linux 6.16 `SO_LINGER` is answered and not done |
| `chmod` and its like | modes without set-user-id and set-group-id |
| `mknod`, `mknodat` | files, pipes and sockets. Not: devices |
| `personality` | that of Linux, and of its 32 bits. Not: a layout of memory without chance |
| `mmap` | all but huge pages, which no limit counts |
| `memfd_create`, `shmget`, `msgget` | the same, and only where a cgroup counts the memory that they take |

## Not permitted (`EPERM`)

Programs ask for these, and people read why it did not work.

"""

GONE = """
## Not there (`ENOSYS`)

Libraries that try one of these take the older way.

"""


def page() -> str:
    """Return the whole page."""
    some = {*seccomp.EXAMINED, *seccomp.EXAMINED_SOCKET_CALLS, *seccomp.UNMAPPED, *seccomp.SEGMENTS}

    def lines(table: dict[str, str]) -> str:
        found = ""
        for topic, text in table.items():
            entries = text.split(",") if "," in text else text.split()
            names = [entry.split()[0] for entry in entries]
            found += f"- {topic}: {', '.join(f'`{name}`*' if name in some else f'`{name}`' for name in names)}\n"
        return found

    return (
        HEAD
        + lines(syscall_table.LET_THROUGH)
        + RULES
        + lines(syscall_table.FORBIDDEN)
        + GONE
        + lines(syscall_table.ABSENT)
    )
