"""What is said to those who look after processes (a session's init, the zygote, a shell task's init), and answered."""

from dataclasses import field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from ingle_worker.wire.classes import dataclass


# --- a session's init -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interrupt:
    """SIGINT to the worker's process group, if it runs this cell; `again`: only if it did not take it before."""

    order: int
    cell: int
    again: bool = False


@dataclass(frozen=True)
class Kill:
    """SIGKILL to everything below init, now."""


@dataclass(frozen=True)
class Adopt:
    """There will be one more worker, in this place; the status socket of its own comes with this frame.

    Answered there, by InitUp without a worker.
    """

    slot: int


@dataclass(frozen=True)
class Enter:
    """Lay these folders, by their names in the data folder, into the session's room. Sent before `Start`.

    Its own are made first; those that it shares with others are there, some of them for reading only.
    """

    own: list[str]
    shared: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Join:
    """The first word to an init that was promised a group. The way into it comes along with this frame, one descriptor
    for each tree of groups: a file to write `0` to, or a folder to fork into. None where there can be no group."""


@dataclass(frozen=True)
class Shell:
    """A shell task is to run in this session's room. The status socket of its init comes along with this frame."""


@dataclass(frozen=True)
class ServeFiles:
    """Fork a file agent in this session's confinement. Its socket comes along with this frame."""


@dataclass(frozen=True)
class NotEntered:
    """It could not be done, and everything ends."""

    reason: str


@dataclass(frozen=True)
class Door:
    """The listening socket that comes along is the session's only way out: who accepts on it is the host."""

    port: int


@dataclass(frozen=True)
class InitUp:
    """Without a worker: there is none yet. `joined`: its worker is in the group that it was promised."""

    pid: int
    worker: int
    joined: bool = False


@dataclass(frozen=True)
class Swept:
    """Nothing is left of a worker: said by its init. Or, by who is above an init that was killed: of that one's."""

    pid: int = 0


@dataclass(frozen=True)
class Signalled:
    """The order was carried out. `ignored`: the worker does not take SIGINT just now, so it should be sent again."""

    order: int
    ignored: bool


@dataclass(frozen=True)
class Exited:
    """The worker's wait status and what it used, said before what is left below init is killed."""

    status: int
    cpu_seconds: float
    peak_kib: int


# --- the zygote -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fork:
    """Make one more prepared child; its five descriptors come along with this frame.

    `spare`: nobody waits for it, so it has time to rehearse. `uid`: who it shall be, where the server may choose.
    `network`: where it is another one than sessions of this zygote have by default. `group`: a `Join` follows, by its
    status socket.
    """

    ticket: int
    spare: bool = False
    uid: int = 0
    network: str = ""
    group: bool = False


@dataclass(frozen=True)
class Prove:
    """The first order to a zygote whose sessions are confined: hold a child as they are held, and have it attack.

    `uid`: who it shall be, as with Fork. `secret` is a file of the server's, `port` where it listens, `server` its
    number.
    """

    uid: int
    secret: str
    port: int
    server: int


@dataclass(frozen=True)
class Proof:
    """What the child could do though it must not; or why it could not be held. Neither: sessions will be held."""

    succeeded: list[str]
    refused: str = ""


@dataclass(frozen=True)
class ZygoteReady:
    """It takes orders now. Of what was to be imported beforehand, `missing` could not be."""

    pid: int
    python: str
    executable: str
    preloaded: list[str]
    missing: list[str]


@dataclass(frozen=True)
class ForkFailed:
    """There is no child for that Fork."""

    ticket: int
    reason: str


# --- a shell task's init --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Start this program; its stdin, stdout and stderr come along with the frame. `limits` of 0 are none.

    `pty`: the three are one terminal, which becomes the program's own. `lingers`: what the program leaves running when
    it ends may go on, and init with it; else all of it ends with the program.
    """

    argv: list[str]
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    pty: bool = False
    lingers: bool = True
    memory: int = 0
    cpu_seconds: float = 0.0
    processes: int = 0
    files: int = 0
    file_size: int = 0


@dataclass(frozen=True)
class Signal:
    """A signal for everything below init, or for the program's process group alone; told by Signalled.

    `again`: the last SIGINT once more, if somebody has missed it who was to have it; else none.
    """

    order: int
    number: int
    group: bool = False
    again: bool = False


@dataclass(frozen=True)
class RunFailed:
    """The program could not be started. `no_folder`: because the one it was to run in is not there, or not for it."""

    reason: str
    no_folder: bool = False


@dataclass(frozen=True)
class ProgramExited:
    """The program's wait status, and what has been used so far. `left`: something of it still runs."""

    status: int
    cpu_seconds: float
    peak_kib: int
    left: bool


@dataclass(frozen=True)
class TreeEnded:
    """The last process below init is gone."""

    cpu_seconds: float
    peak_kib: int


@dataclass(frozen=True)
class Breach:
    """A limit was passed, by this much; everything below init is being killed."""

    limit: str
    used: float
