"""The wire between a session and the server: whatever comes over it costs that session at most."""

from isolation.attack import attack

HELD = "no level lets it through"


def harm_to_others(fort, evidence):
    return not fort.unharmed()


@attack("limits", root=HELD, user=HELD, after=harm_to_others)
def garbage(t):
    import os

    for fd in range(3, 200):
        try:
            os.write(fd, os.urandom(100_000))
        except OSError:
            continue
    return True


@attack("limits", root=HELD, user=HELD, after=harm_to_others)
def a_length_of_four_gigabytes(t):
    import os

    for fd in range(3, 200):
        try:
            os.write(fd, b"\xff\xff\xff\xff" + b"x" * 1000)
        except OSError:
            continue
    return True


@attack("limits", root=HELD, user=HELD, after=harm_to_others)
def json_that_nests_deeply(t):
    import os

    for kind in range(40):
        body = b"[" * 200_000
        for fd in range(3, 200):
            try:
                os.write(fd, (len(body) + 1).to_bytes(4, "big") + bytes([kind]) + body)
            except OSError:
                continue
    return True


@attack("limits", root=HELD, user=HELD, after=harm_to_others)
def messages_that_it_makes_up(t):
    import json
    import os

    bodies = (
        {"cell": 1, "status": "ok"},
        {"cell": 10**30, "status": "ok", "error": None, "value": {"text/plain": "x" * 1000}},
        {"pid": t.server, "worker": t.server},
        {"pid": 1, "python": "3.99.9"},
        {"status": 9, "cpu_seconds": -1, "peak_kib": 2**70},
        {"order": 1, "ignored": False},
        {"wait": 1, "prompt": "password", "secret": True, "background": False},
        {"data": {"text/html": "x" * 100_000}, "metadata": {"a": [[[]]]}, "display_id": "../../x"},
    )
    for kind in range(60):
        for body in bodies:
            text = json.dumps(body).encode()
            frame = (len(text) + 1).to_bytes(4, "big") + bytes([kind]) + text
            for fd in range(100, 130):
                try:
                    os.write(fd, frame)
                except OSError:
                    continue
    return True


@attack("limits", root=HELD, user=HELD, after=harm_to_others)
def its_descriptors_closed(t):
    import os

    os.closerange(3, 4096)
    return True


@attack("limits", root=HELD, user=HELD, after=harm_to_others)
def its_descriptors_replaced(t):
    import os

    nothing = os.open("/dev/zero", os.O_RDWR)
    for fd in range(100, 130):
        try:
            os.fstat(fd)
            os.dup2(nothing, fd)
        except OSError:
            continue
    return True


@attack("limits", root=HELD, user=HELD, after=harm_to_others)
def descriptors_sent_to_the_server(t):
    import os
    import socket

    kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
    for fd in range(3, 200):
        try:
            way = socket.socket(fileno=os.dup(fd))
        except OSError:
            continue
        for _ in range(50):
            try:
                way.setblocking(False)
                socket.send_fds(way, [b"\0"], kept)
            except OSError:
                break
    return True


@attack("limits", root=HELD, user=HELD, after=harm_to_others)
def a_flood(t):
    import os

    piece = b"\0\0\0\x03\x05{}" * 10_000
    for fd in range(100, 130):
        try:
            os.fstat(fd)
            for _ in range(100):
                os.write(fd, piece)
        except OSError:
            continue
    return True


@attack("limits", root=HELD, user=HELD, after=harm_to_others)
def what_the_server_said_to_it(t):
    import os

    for fd in range(100, 130):
        try:
            os.set_blocking(fd, False)
            os.read(fd, 65536)
        except OSError:
            continue
    return True
