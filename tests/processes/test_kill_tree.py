"""Ending some of the processes below one: those that are killed are gone when that is told."""

import subprocess
import sys

import pytest

from support.checkout import beside

SWEEPS = """
import os, sys, time
sys.path.insert(0, {guest!r})
from ingle_worker.processes import kill_tree, linux

def stay():
    while True:
        time.sleep(60)

def worker():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            # It takes the kernel a while to free this, so that its parent is gone before it.
            held = bytearray(b"x" * 4096) * 30_000
            os.write(told, b".")
        stay()
    stay()

def started(run):
    pid = os.fork()
    if pid == 0:
        run()
    return pid

assert linux.become_subreaper()
ready, told = os.pipe()
other = started(stay)
left = []
for _ in range({rounds}):
    chosen = started(worker)
    assert os.read(ready, 1) == b"."
    kill_tree.sweep(lambda pid, status, usage: None, chosen=lambda pid: pid == chosen)
    left += [pid for pid in linux.children(os.getpid()) if pid != other]
os.kill(other, 9)
os.wait()
print(left)
"""


@pytest.mark.req("exit.tree")
def test_a_process_that_dies_after_its_parent_is_waited_for() -> None:
    code = SWEEPS.format(guest=str(beside("src")), rounds=10)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")
