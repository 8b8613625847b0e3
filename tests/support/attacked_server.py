"""A server under attack: its secrets, a session that is a victim, services on the host, and a look at all of it after.

Made once for each level and user. An attack runs in a session of its own; whether it worked is judged from outside.
The server runs apart from this machine (see `confined_user`), so that what an attack changes is changed in the fort
only.
"""

import contextlib
import ctypes
import json
import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import venv
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx

from ingle_worker.lockdown import syscall_table
from support.attack import CALL, PRELUDE, Attack
from support.confined_user import GUEST

UID = 54_321
"""An ordinary user: nobody has this number, and it owns nothing but what a fort gives it."""

OWN_MISTAKES = (AssertionError, AttributeError, ImportError, KeyError, NameError, SyntaxError, TypeError, ValueError)
"""Errors by which an attack shows that it is out of date."""

PATIENCE = 60.0
SURVIVAL = 2.0
MIB = 1024**2
LIMITS = {"memory": 200 * MIB, "processes": 60, "files": 256, "file_size": 100 * MIB, "tmp": 16 * MIB, "disk": 8 * MIB}

VICTIM = """
import contextlib, ctypes, os, signal, socket, tempfile, threading
secret = {secret!r}
heard = []
signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
open("secret.txt", "w").write(secret)
held = open("secret.txt")
for _ in range(200):
    print(secret)
open(os.path.join(tempfile.gettempdir(), "note-1"), "w").write(secret)
def speak(door):
    door.listen(8)
    while True:
        way, _ = door.accept()
        with contextlib.suppress(OSError):
            way.sendall(secret.encode())
        way.close()
doors = []
def serve(family, address):
    door = socket.socket(family)
    door.bind(address)
    doors.append(door)
    threading.Thread(target=speak, args=(door,), daemon=True).start()
    return door
port = serve(socket.AF_INET, ("127.0.0.1", 0)).getsockname()[1]
with contextlib.suppress(OSError):
    serve(socket.AF_UNIX, "s")
with contextlib.suppress(OSError):
    serve(socket.AF_UNIX, "\\0" + {name!r})
with contextlib.suppress(OSError):
    with open("/dev/shm/" + {name!r}, "w") as file:
        file.write(secret)
def made(call, *given):
    with contextlib.suppress(OSError):
        return syscall(call, *given)
with contextlib.suppress(OSError):
    place = syscall("shmat", syscall("shmget", {key}, 4096, 0o1600), 0, 0)
    ctypes.memmove(place, secret.encode(), len(secret))
with contextlib.suppress(OSError):
    number = syscall("msgget", {key}, 0o1600)
    made("msgsnd", number, ctypes.create_string_buffer((1).to_bytes(8, "little") + secret.encode(), 200), 100, 0o4000)
with contextlib.suppress(TypeError):
    number = made("semget", {key}, 1, 0o1600)
    made("semctl", number, 0, 16, 7)
with contextlib.suppress(TypeError):
    queue = made("mq_open", {name!r}.encode(), 0o2 | 0o100, 0o600, 0)
    libc.mq_send(queue, secret.encode(), len(secret), 0)
made("add_key", b"user", {name!r}.encode(), secret.encode(), len(secret), -4)
print("PORT", port, tempfile.gettempdir())
"""


class Judgement(SimpleNamespace):
    """`breach` is what the attack got, or nothing; `said` what there is to say about it."""

    breach: object
    said: str


class Fort:
    def __init__(self, level: str, who: str) -> None:
        self.level, self.who = level, who
        self.mark = secrets.token_hex(6)
        self.secret = f"secret-{secrets.token_hex(16)}"
        self.uid = 0 if who == "root" else UID
        self.folder = Path(tempfile.mkdtemp(prefix="ingle-fort-"))
        self.folder.chmod(0o755)
        self.ipc_key = secrets.randbelow(2**30) + 1
        self._doors: list[socket.socket] = []
        self._speaking: list[threading.Thread] = []
        self._session = ""
        self.exit = ""
        self._workspace = -1
        self._process: subprocess.Popen[str] | None = None
        try:
            self._lay_out()
            self._start()
            self._make_victim()
            self._targets = self._find_targets()
        except BaseException:
            self.close()
            raise

    # --- making ---

    def _lay_out(self) -> None:
        self.home = self.folder / "home"
        self.user_home = self.folder / "user"
        self.environment = self.folder / "env"
        venv.EnvBuilder(symlinks=False, with_pip=False).create(self.environment)
        for folder in (self.home, self.user_home):
            folder.mkdir(mode=0o700)
        self.shown = self.folder / "shown"
        """A folder that sessions may read and not write."""
        self.shown.mkdir(mode=0o777)
        self.shown.chmod(0o777)
        (self.shown / "file").write_text("as it was")
        (self.shown / "file").chmod(0o666)
        self.host_file = self.user_home / "secret.txt"
        self.host_file.write_text(self.secret)
        (self.home / "config.toml").write_text(f"# {self.secret}\n")
        for path in self.folder.rglob("*"):
            os.chown(path, self.uid, self.uid, follow_symlinks=False)
        for path in (self.host_file, self.home / "config.toml"):
            path.chmod(0o600)

    def _start(self) -> None:
        self.host_socket = self.folder / "host.sock"
        self.host_abstract = f"host-{self.mark}"
        self._speak(socket.AF_UNIX, str(self.host_socket))
        self.host_socket.chmod(0o777)
        self._speak(socket.AF_UNIX, "\0" + self.host_abstract)
        self.ports = [
            self._speak(socket.AF_INET, ("127.0.0.1", 0)).getsockname()[1],
            self._speak(socket.AF_INET6, ("::1", 0)).getsockname()[1] if has_version_6() else 9,
            self._speak(socket.AF_INET, ("0.0.0.0", 0)).getsockname()[1],
        ]
        self._datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._datagrams.bind(("127.0.0.1", 0))
        self._doors.append(self._datagrams)
        program = [sys.executable, str(Path(__file__).with_name("confined_user.py")), str(self.uid), str(self.folder)]
        program += [sys.executable, "-m", "ingle", "serve", "--port", "0", "--preload", "", "--pool", "1"]
        program += ["--isolation", self.level, "--python", str(self.environment / "bin" / "python")]
        # A name that is listed and has an address of this machine: that is not granted by it.
        hosts = f"none,pypi.org,localhost:{self.ports[0]}"
        program += ["--network", "allowlist", "--allow-host", hosts, "--timeline-memory", "2000"]
        program += ["--timeline-disk", str(100 * MIB), "--figures-disk", str(32 * MIB)]
        program += ["--log-file", str(self.home / "server.log"), "--log-level", "info"]
        program += ["--mount", f"{self.shown}:ro"]
        for name, value in LIMITS.items():
            program += [f"--limit-{name.replace('_', '-')}", str(value)]
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.user_home),
            "INGLE_HOME": str(self.home),
            "CLOUD_SECRET": self.secret,
        }
        self._process = subprocess.Popen(
            program,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd="/",
        )
        said = []
        assert self._process.stderr is not None
        for line in self._process.stderr:
            said.append(line)
            if "stop" in line:
                break
        found = re.search(r"http://\S+", "".join(said))
        assert found, "".join(said)
        self.url = found[0]
        self._listening = threading.Thread(target=self._process.stderr.read, daemon=True)
        self._listening.start()
        self.token = (self.home / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {self.token}"}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, verify=False)

    def _speak(self, family: int, address: Any) -> socket.socket:
        """Tell the secret to whoever connects."""
        door = socket.socket(family)
        door.bind(address)
        door.listen(16)
        self._doors.append(door)

        def tell() -> None:
            while True:
                try:
                    way, _ = door.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError), way:
                    way.sendall(self.secret.encode())

        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        self._speaking.append(thread)
        return door

    def _make_victim(self) -> None:
        made = self.client.post("/v1/sessions", json={"session_id": "victim"})
        assert made.status_code == 201, made.text
        assert made.json()["isolation"] == self.level, made.text
        code = PRELUDE + VICTIM.format(secret=self.secret, name=f"victim-{self.mark}", key=self.ipc_key)
        result = self.execute("victim", code)
        assert result["status"] == "ok", result
        _, port, self.victim_tmp = result["stdout"].splitlines()[-1].split()
        self.victim_port = int(port)
        self.victim_folder = self.client.get("/v1/sessions/victim").json()["cwd"]
        about = os.stat(self.victim_folder)
        found = [pid for pid in self._with_folder(about) if _comm(_parent(pid)) == "ingle-init"]
        assert len(found) == 1, found
        self.victim = found[0]

    def _find_targets(self) -> str:
        """Where everything is that an attack may want, as an attacker could learn it."""
        assert self._process is not None
        server = self._process.pid
        zygote = next(pid for pid in below(server) if _comm(pid) == "ingle-zygote")
        lan, interface = own_address()
        return json.dumps(
            {
                "server": server,
                "server_heap": heap(server),
                "zygote": zygote,
                "zygote_heap": heap(zygote),
                "victim": self.victim,
                "victim_heap": heap(self.victim),
                "victim_init": _parent(self.victim),
                "victim_folder": self.victim_folder,
                "victim_home": os.path.dirname(self.victim_folder),
                "victim_tmp": self.victim_tmp,
                "victim_port": self.victim_port,
                "ipc_key": self.ipc_key,
                "shm_name": f"victim-{self.mark}",
                "queue_name": f"victim-{self.mark}",
                "abstract_name": f"victim-{self.mark}",
                "key_name": f"victim-{self.mark}",
                "home": str(self.home),
                "run_socket": str(next((self.home / "run").glob("*.sock"))),
                "host_home": str(self.user_home),
                "host_file": str(self.host_file),
                "host_socket": str(self.host_socket),
                "host_abstract": self.host_abstract,
                "port": self.ports[0],
                "port6": self.ports[1],
                "port_everywhere": self.ports[2],
                "datagram_port": self._datagrams.getsockname()[1],
                "lan": lan,
                "interface": interface,
                "url": self.url,
                "mark": self.mark,
                "watched": self.level != "none",
                "environment": str(self.environment),
                "installed": sysconfig.get_path("purelib", vars={"base": sys.base_prefix, "platbase": sys.base_prefix}),
                "guest": GUEST,
                "let_through": sorted(syscall_table.numbers(syscall_table.LET_THROUGH, platform.machine()).values()),
                **LIMITS,
            }
        )

    # --- attacking ---

    def execute(self, session: str, code: str, **options: Any) -> dict[str, Any]:
        answer = self.client.post(f"/v1/sessions/{session}/execute", json={"code": code, **options})
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def run(self, attack: Attack) -> Judgement:
        """Carry it out in a session of its own, and judge it."""
        made = self.client.post("/v1/sessions", json={})
        assert made.status_code == 201, made.text
        self._session = made.json()["session_id"]
        self._forget_peak()
        self.descriptors_before = self.descriptors_of_the_server()
        try:
            result = self.execute(self._session, PRELUDE + attack.text + CALL.format(targets=self._targets), timeout=30)
            self._hold_folder()
            self.exit = str(result["exit"])
            said = next(
                (line for line in result["stdout"].splitlines() if line.startswith(("HELD", "EVIDENCE"))),
                f"HELD the session ended: {result['exit']}",
            )
            kind, _, rest = said.partition(" ")
            evidence = json.loads(rest) if kind == "EVIDENCE" else None
            breach: object = evidence
            if attack.secret:
                breach = evidence if self.secret_in([json.dumps(evidence)]) else None
            # What can be judged from outside is, even where the session did not live to tell.
            if attack.after is not None and (evidence or attack.root is not True):
                breach = attack.after(self, evidence)
            return Judgement(breach=breach, said=f"{said[:400]} {result['notices']}")
        finally:
            self.client.delete(f"/v1/sessions/{self._session}")
            if self._workspace >= 0:
                os.close(self._workspace)
                self._workspace = -1

    def refused_by_the_machine(self, attack: Attack) -> str | None:
        """Say how a process outside of ingle, of the same user, fails with an attack. Return None if it does not.

        Where it fails by a mistake of its own, the machine is not to blame.
        """
        with tempfile.TemporaryDirectory(prefix="ingle-fort-") as folder:
            os.chmod(folder, 0o755)
            work = os.path.join(folder, "work")
            os.mkdir(work)
            os.chown(work, self.uid, self.uid)
            code = f"import os\nos.chdir({work!r})\n{PRELUDE}{attack.text}{CALL.format(targets=self._targets)}"
            confined = [sys.executable, str(Path(__file__).with_name("confined_user.py")), str(self.uid), folder]
            done = subprocess.run(
                [*confined, sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE
            )
        said = next((line for line in done.stdout.splitlines() if line.startswith(("HELD", "EVIDENCE"))), None)
        if said is None or any(f"HELD {each.__name__} " in said for each in OWN_MISTAKES):
            return None
        kind, _, rest = said.partition(" ")
        return None if kind == "EVIDENCE" and json.loads(rest) else said[:200]

    def _hold_folder(self) -> None:
        folder = self.client.get(f"/v1/sessions/{self._session}").json()["cwd"]
        with contextlib.suppress(OSError):
            self._workspace = os.open(folder, os.O_PATH | os.O_DIRECTORY)

    # --- judging ---

    def secret_in(self, texts: Iterable[str | None]) -> bool:
        return any(self.secret in text or self.token in text for text in texts if text)

    def read_as_the_server(self, path: str) -> str:
        """A file as the server sees it: nothing where there is none."""
        assert self._process is not None
        try:
            return Path(f"/proc/{self._process.pid}/root{path}").read_text()
        except OSError:
            return ""

    def descriptors_of_the_server(self) -> int:
        assert self._process is not None
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def environments_outside(self) -> list[str]:
        """Those of the server, and of what it keeps beside its sessions."""
        assert self._process is not None
        outside = [pid for pid in below(self._process.pid) if _comm(pid) in ("ingle-zygote", "ingle-holder")]
        return [Path(f"/proc/{pid}/environ").read_text() for pid in (self._process.pid, *outside)]

    def in_victim(self, code: str) -> str:
        text: str = self.execute("victim", code, timeout=20)["stdout"]
        return text.strip()

    def unharmed(self) -> bool:
        """The server answers, and the victim has kept what it had."""
        return self.client.get("/healthz").status_code == 200 and self.in_victim("print(secret)") == self.secret

    def _forget_peak(self) -> None:
        assert self._process is not None
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")
        self._memory = self._in_status("VmHWM")

    def memory_taken(self) -> int:
        """By the server, at most, since the attack began."""
        return self._in_status("VmHWM") - self._memory

    def _in_status(self, name: str) -> int:
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(name))

    def data_on_disk(self) -> int:
        """Bytes that the server keeps of the session, beside what the session has written itself."""
        folder = Path(self.client.get(f"/v1/sessions/{self._session}").json()["cwd"]).parent
        size = 0
        for path in [*folder.glob("timeline*"), *(folder / "figures").glob("*")]:
            with contextlib.suppress(FileNotFoundError):  # it is being written, and has its name by now
                size += max(path.stat().st_size, 4096)
        return size

    def heard(self) -> bool:
        self._datagrams.settimeout(1)
        try:
            return self._datagrams.recv(100) == self.mark.encode()
        except TimeoutError:
            return False

    def is_setuid_root(self, path: str) -> bool:
        about = os.stat(path)
        return about.st_uid == 0 and bool(about.st_mode & 0o4000)

    def end_and_count(self, some: bool) -> list[str]:
        """End the session; whatever is left of it a moment later. `some`: there was something to end."""
        assert self._workspace >= 0
        about = os.stat(self._workspace)
        assert self._with_folder(about) or not some, "nothing was there to survive"
        assert self.client.delete(f"/v1/sessions/{self._session}").status_code == 200
        end = time.monotonic() + SURVIVAL
        while (left := self._with_folder(about)) and time.monotonic() < end:
            time.sleep(0.02)
        return [f"{pid} {_comm(pid)}" for pid in left]

    def _with_folder(self, about: os.stat_result) -> list[int]:
        """Processes that are in this folder."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.stat(f"/proc/{name}/cwd"), about):
                        found.append(int(name))
        return found

    # --- the server's access to files ---

    def _path(self, path: str) -> str:
        return f"/v1/sessions/{self._session}/files/{path}"

    def download(self, path: str) -> str | None:
        answer = self.client.get(self._path(path))
        return answer.text if answer.status_code == 200 else None

    def upload(self, path: str, data: bytes) -> None:
        self.client.put(self._path(path), content=data)

    def remove(self, path: str) -> bool:
        self.client.delete(self._path(path))
        return self.host_file_changed()

    def listed(self, path: str) -> str:
        return self.client.get(f"/v1/sessions/{self._session}/files", params={"folder": path}).text

    def host_file_changed(self) -> bool:
        return not self.host_file.exists() or self.host_file.read_text() != self.secret

    def answers_for(self, path: str) -> bool:
        """Whether the server still answers when it is asked for something that is no file."""
        return self.client.get(self._path(path), timeout=10).status_code in (404, 422) and self.unharmed()

    def races(self) -> bool:
        found = []
        for _ in range(60):
            found += [self.download("way/secret.txt"), self.download("real/secret.txt")]
        assert "mine" in found, "the race was never on"
        return self.secret_in(found)

    # --- the end ---

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if hasattr(self, "client"):
                self.client.close()
                self._listening.join(10)
            if self._process.stderr is not None:
                self._process.stderr.close()
        for door in self._doors:
            with contextlib.suppress(OSError):
                door.shutdown(socket.SHUT_RDWR)
            door.close()
        for thread in self._speaking:
            thread.join(5)
        _forget_ipc(self.ipc_key, self.mark)
        mounted = Path("/proc/self/mountinfo").read_text()
        assert str(self.folder) not in mounted, "something is mounted in the fort: it is not removed"
        shutil.rmtree(self.folder, ignore_errors=True)


def _forget_ipc(key: int, mark: str) -> None:
    """What the victim made and the kernel keeps."""
    libc = ctypes.CDLL(None)
    libc.shmctl(libc.shmget(key, 0, 0), 0, None)
    libc.msgctl(libc.msgget(key, 0), 0, None)
    libc.semctl(libc.semget(key, 0, 0), 0, 0, None)
    libc.mq_unlink(f"/victim-{mark}".encode())


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def below(root: int) -> list[int]:
    found = [root]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in task.read_text().split()]
    return found[1:]


def heap(pid: int) -> int:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "[heap]" in line:
            return int(line.split("-")[0], 16)
    raise AssertionError(f"no heap in {pid}")


def has_version_6() -> bool:
    """Return whether this machine has a loopback address of IP version 6."""
    try:
        with socket.socket(socket.AF_INET6) as door:
            door.bind(("::1", 0))
    except OSError:
        return False
    return True


def own_address() -> tuple[str, str]:
    """An address of this machine that is not loopback, and the interface that has it; loopback where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect(("198.51.100.7", 9))
        except OSError:
            return "127.0.0.1", "lo"
        address = way.getsockname()[0]
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    return address, names[0] if names else "lo"
