"""The wire between a session and the server: whatever comes over it costs that session at most."""

from support.attack import attack

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
    import select

    for fd in range(3, 200):
        try:
            if select.select([], [fd], [], 1)[1]:  # an end that an earlier attack has filled would wait for ever
                os.write(fd, b"\xff\xff\xff\xff" + b"x" * 1000)
        except OSError:
            continue
    return True


@attack("limits", root=HELD, user=HELD, after=harm_to_others)
def json_that_nests_deeply(t):
    for kind in range(128):
        wire().sendall(frame(kind, b"[" * 200_000))
    return True


@attack("limits", root=HELD, user=HELD, after=harm_to_others)
def messages_that_it_makes_up(t):
    bodies = (
        {"cell": 1, "status": "ok"},
        {"cell": 10**30, "status": "ok", "error": None, "value": {"text/plain": "x" * 1000}},
        {"pid": t.server, "worker": t.server},
        {"pid": 1, "python": "3.99.9", "executable": "/bin/sh"},
        {"status": 9, "cpu_seconds": -1, "peak_kib": 2**70},
        {"order": 1, "ignored": False},
        {"wait": 1, "prompt": "password", "secret": True, "background": False},
        {"data": {"text/html": "x" * 100_000}, "metadata": {"a": [[[]]]}, "display_id": "../../x", "mark": NEVER},
        {"ticket": 1, "slots": [0, -1, 2**70], "names": ["x"], "variables": [], "reason": "made up"},
        {"cwd": "/", "notices": ["made up"]},
    )
    way = wire()
    for kind in range(64, 128):
        for body in bodies:
            try:
                way.sendall(frame(kind, body, b"payload"))
            except OSError:
                return True
    return True


@attack("limits", root=HELD, user=HELD, after=harm_to_others)
def messages_of_its_own_kind(t):
    """Well made each of them, and none at its time."""
    way = wire()
    for _ in range(3):
        for kind, body in (
            (64, {"pid": 1, "python": "9.9", "executable": "/bin/sh"}),
            (65, {"cwd": "/etc"}),
            (66, NEVER),
            (67, {"stream": "stdout", "text": "t", "mark": NEVER}),
            (68, {"cell": 77, "data": {}}),
            (69, {"wait": -1}),
            (70, {"wait": 5}),
            (72, {"cell": 77, "code": 2**80, "message": None, "execution_time": 1e308}),
            (73, {"cell": 77, "status": "none", "execution_time": -1}),
            (74, {"data": {}, "mark": NEVER, "update": True, "display_id": "x"}),
            (75, {}),
            (80, {"ticket": 1, "variables": []}),
            (81, {"ticket": 1}),
            (82, {"ticket": 1, "slots": [1, 2, 3]}),
            (83, {"ticket": 1, "failed": [1]}),
            (92, {"ticket": 1}),
            (93, {"ticket": 1, "reason": "r"}),
            (94, {"ticket": 1, "names": ["x"]}),
            (84, {}),
            (85, {"problem": "p"}),
            (86, {"names": ["x"]}),
            (87, {"names": ["x"]}),
        ):
            way.sendall(frame(kind, body))
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


@attack("limits", root=HELD, user=HELD, after=harm_to_others, by_server=True)
def a_flood(t):
    way = wire()
    piece = frame(70, {"wait": 7}) * 10_000
    for _ in range(20):
        os.write(1, b".")
        way.sendall(piece)
    return True


@attack("limits", root=HELD, user=HELD, after=harm_to_others)
def a_descriptor_that_is_slow_to_close(t):
    """The last who closes a connection that lingers waits until all is sent, and nobody takes it here."""
    import socket
    import struct

    door = socket.socket()
    door.bind(("127.0.0.1", 0))
    door.listen(1)
    way = socket.socket()
    way.connect(door.getsockname())
    globals()["kept"] = door.accept(), door
    way.setblocking(False)
    try:
        while True:
            way.send(b"x" * 65536)
    except BlockingIOError:
        pass
    way.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10_000))
    # Kept if it cannot be sent: then it is here that closing it would take so long.
    globals()["lingering"] = way
    socket.send_fds(wire(), [frame(66, NEVER)], [way.fileno()])
    way.close()
    return True


# --- what the server has to keep of it ------------------------------------------------------------------------


def too_much(fort, evidence):
    """What the server took for it was many times what it should keep of a session; or others were harmed."""
    taken = fort.memory_taken() // 1024**2
    return f"{taken} MiB" if taken > 250 else harm_to_others(fort, evidence)


@attack("limits", root=HELD, user=HELD, after=too_much, by_server=True)
def output_that_waits_for_what_never_comes(t):
    wire().sendall(frame(66, NEVER))
    for _ in range(3000):
        os.write(2, b"x" * 100_000)
    return True


@attack("limits", root=HELD, user=HELD, after=too_much, by_server=True)
def displays_that_wait_for_what_never_comes(t):
    said = frame(74, {"data": {"text/plain": "x" * 10_000_000}, "mark": NEVER})
    for _ in range(30):
        wire().sendall(said)
    return True


@attack("limits", root=HELD, user=HELD, after=too_much)
def readers_without_end(t):
    way = wire()
    try:
        for number in range(50):
            way.sendall(frame(69, {"wait": number, "prompt": "x" * 10_000_000, "background": number % 2 == 1}))
        for number in range(200_000):
            way.sendall(frame(69, {"wait": number, "prompt": "x" * 100, "background": number % 2 == 1}))
    except OSError:
        pass
    return True


@attack("limits", root=HELD, user=HELD, after=too_much)
def waits_that_end_at_once(t):
    way = wire()
    asked = frame(69, {"wait": 1, "prompt": "x" * 10_000}) + frame(70, {"wait": 1})
    try:
        for _ in range(20_000):
            way.sendall(asked)
    except OSError:
        pass
    return True


@attack("limits", root=HELD, user=HELD, after=too_much, by_server=True)
def a_million_strings(t):
    many = b'"",' * 14_000_000
    for kind, before, after in (
        (65, b'{"cwd":"/","notices":[', b'""]}'),
        (73, b'{"cell":1,"status":"ok","execution_time":1,"names_added":[', b'""]}'),
        (87, b'{"names":[', b'""]}'),
    ):
        try:
            wire().sendall(frame(kind, before + many + after))
        except OSError:
            pass
    return True


@attack("limits", root=HELD, user=HELD, after=too_much, by_server=True)
def a_million_lists(t):
    wire().sendall(frame(68, b'{"cell":1,"data":{},"metadata":{"a":[' + b"[]," * 20_000_000 + b"[]]}}"))
    return True


def fills_the_disk(fort, evidence):
    return fort.data_on_disk() > 200 * 1024**2 or too_much(fort, evidence)


@attack("limits", root=HELD, user=HELD, after=fills_the_disk, by_server=True)
def results_without_end(t):
    said = frame(68, {"cell": 1, "data": {"text/plain": "x" * 2_000_000}})
    for _ in range(150):
        wire().sendall(said)
    return True


@attack("limits", root=HELD, user=HELD, after=fills_the_disk, by_server=True)
def images_of_no_size(t):
    way = wire()
    for number in range(20_000):
        way.sendall(frame(75, b"", str(number).encode()))
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


# --- out of turn ------------------------------------------------------------------------------------------------


def not_ended_for_it(fort, evidence):
    return "broke the protocol" not in fort.exit or harm_to_others(fort, evidence)


@attack("limits", root=HELD, user=HELD, after=not_ended_for_it)
def a_copy_that_was_never_made(t):
    """Who says so on its own wire is not listened to any more. Nor may it go on, and keep the server awake with what
    nobody reads."""
    import time

    way = wire()
    way.sendall(frame(88, {"reason": "made up"}))
    for _ in range(10_000):
        way.send(b"x" * 1000)
        time.sleep(0.001)


def answers_wrongly(fort, evidence):
    """Of itself a session can tell what it likes. When it has said all of it, what is asked of it is told as it is."""
    answers = [fort.execute(fort._session, f"{number} * 7", wait=60)["result"] for number in (5, 6, 7)]
    return answers[-1] != {"text/plain": "49"} or harm_to_others(fort, evidence)


@attack("limits", root=HELD, user=HELD, after=answers_wrongly)
def ends_that_are_none(t):
    """Of this cell before it is over, twice, and of cells that nobody has sent."""
    way = wire()
    for cell in (1, 1, 2, 3, 0, -1):
        forged = {"cell": cell, "status": "ok", "execution_time": 0.5, "value": {"text/plain": "forged"}}
        way.sendall(frame(73, forged))
        way.sendall(frame(65, {"cwd": "/forged"}))
        way.sendall(frame(83, {"ticket": 1}) + frame(70, {"wait": 1}) + frame(80, {"ticket": 1, "variables": []}))
    return True


@attack("limits", root=HELD, user=HELD, after=answers_wrongly)
def a_frame_byte_by_byte(t):
    way = wire()
    for byte in frame(66, {**NEVER, "begin": 0}) * 20:
        way.sendall(bytes([byte]))
    return True


# --- as init ----------------------------------------------------------------------------------------------------


@attack("limits", root=HELD, user=HELD, after=harm_to_others)
def lies_of_its_init(t):
    """What no process ends with, a door that is none, an order that nobody gave."""
    import os
    import socket

    way = socket_of_init()
    file = os.open("/dev/null", os.O_RDONLY)
    socket.send_fds(way, [frame(109, {"port": 1})], [file])
    for body in ({"status": 2**80}, {"status": -1}, {"status": 0x7F}):
        way.sendall(frame(98, {**body, "cpu_seconds": 1e308, "peak_kib": -(2**80)}))
    way.sendall(frame(97, {"order": 1, "ignored": True}) + frame(96, {"pid": t.server, "worker": t.server}))
    for number in range(10_000):
        way.sendall(frame(103, {"pid": number}))
    return True


def holds_them(fort, evidence):
    """Descriptors that the server took and has kept."""
    return fort.descriptors_of_the_server() - fort.descriptors_before > 100 or harm_to_others(fort, evidence)


@attack("limits", root=HELD, user=HELD, after=holds_them)
def descriptors_sent_as_its_init(t):
    import os
    import socket

    way = socket_of_init()
    kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(4)]
    for _ in range(200):
        socket.send_fds(way, [frame(97, {"order": 99, "ignored": False})], kept)
    return True


def goes_on_and_on(fort, evidence):
    """Where it could begin, the session is ended for it soon, and the next one is told why."""
    told = (fort.execute(fort._session, "1")["notices"] for _ in range(1000))
    ended = not evidence or any("init broke the protocol" in str(notices) for notices in told)
    return not ended or harm_to_others(fort, evidence)


@attack("limits", root=HELD, user=HELD, after=goes_on_and_on)
def a_flood_as_its_init(t):
    """By a process that goes on with it while others are to be answered."""
    import os

    way = socket_of_init()
    said = frame(97, {"order": 99, "ignored": False}) * 1000
    if os.fork() == 0:
        try:
            while True:
                way.sendall(said)
        finally:
            os._exit(0)
    return True
