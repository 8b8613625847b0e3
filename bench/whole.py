"""`make bench`: run one bench after the other, and list at the end every target with the figure that met or missed it.

A bench that fails or does not end is told, and the others still run. Flags such as `--quick` go to each of them.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent

BENCHES = (
    *("run", "http_api", "isolation", "shell", "churn", "state"),
    *("saving", "mcp", "tools", "compat", "compat_e2b"),
)
"""The targets of the engine come first."""

MAX_SECONDS = 600
"""Time for one bench. The longest takes a third of it on two quiet cores."""

JUDGED = (" met", " MISSED")
"""How a line with a target ends."""


@dataclass
class Ran:
    name: str
    seconds: float
    code: int | None
    """Exit code, or None if it did not end in time."""
    judged: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        if self.code is None:
            return f"did not end within {MAX_SECONDS} s"
        return "ended" if self.code == 0 else f"FAILED with {self.code}"


def run(name: str, flags: list[str]) -> Ran:
    print(f"== bench/{name}.py", flush=True)
    began = time.monotonic()
    # In a session of its own, so that servers of a bench that is ended end with it.
    process = subprocess.Popen(
        [sys.executable, str(HERE / f"{name}.py"), *flags], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    late = threading.Event()

    def end() -> None:
        late.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(MAX_SECONDS, end)
    timer.start()
    judged = []
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            print(line, end="", flush=True)
            if line.rstrip().endswith(JUDGED):
                judged.append(line.rstrip())
    code = process.wait()
    timer.cancel()
    return Ran(name, time.monotonic() - began, None if late.is_set() else code, judged)


def main() -> None:
    ran = [run(name, sys.argv[1:]) for name in BENCHES]
    print("\n== targets")
    for each in ran:
        for line in each.judged:
            print(f"{each.name:10} {line}")
    print("\n== benches")
    for each in ran:
        print(f"{each.name:10} {each.seconds:6.0f} s  {each.state}")
    missed = sum(line.endswith("MISSED") for each in ran for line in each.judged)
    count = sum(len(each.judged) for each in ran)
    print(f"{'together':10} {sum(each.seconds for each in ran):6.0f} s  {count - missed} of {count} targets met")
    sys.exit(any(each.code != 0 for each in ran))


if __name__ == "__main__":
    main()
