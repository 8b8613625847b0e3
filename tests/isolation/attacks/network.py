"""The network: this machine's own services, its neighbours, odd families of sockets, and being a server itself."""

import socket

from support.attack import attack


@attack(secret=True)
def a_service_on_loopback(t):
    import socket

    with socket.create_connection(("127.0.0.1", t.port), 5) as way:
        return way.recv(100)


@attack(secret=True)
def a_service_on_loopback_of_version_6(t):
    import socket

    with socket.create_connection(("::1", t.port6), 5) as way:
        return way.recv(100)


@attack()
def the_server_itself(t):
    import urllib.request

    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return direct.open(f"{t.url}/healthz", timeout=5).status


@attack(secret=True)
def a_service_by_the_machines_own_address(t):
    import socket

    with socket.create_connection((t.lan, t.port_everywhere), 5) as way:
        return way.recv(100)


def was_heard(fort, evidence):
    return fort.heard()


@attack(after=was_heard)
def a_datagram_to_loopback(t):
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        return way.sendto(t.mark.encode(), ("127.0.0.1", t.datagram_port))


@attack()
def a_way_to_the_metadata_service(t):
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect(("169.254.169.254", 80))  # asks for a route, and sends nothing
        return way.getsockname()


@attack()
def a_way_to_the_internet(t):
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect(("198.51.100.7", 53))
        return way.getsockname()


@attack()
def a_way_to_the_neighbours(t):
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((t.lan.rpartition(".")[0] + ".77", 80))
        return way.getsockname()


@attack("restricted", root="not every machine has it", user="not every machine has it")
def a_socket_to_the_hypervisor(t):
    import socket

    socket.socket(40, socket.SOCK_STREAM).close()
    return True


@attack("restricted", user="only root may")
def raw_packets(t):
    import socket

    socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
    return True


@attack("restricted", user="only root may")
def raw_messages(t):
    import socket

    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
    return True


@attack("restricted", root="not every kernel has others", user="not every kernel has others")
def other_families_of_sockets(t):
    import socket

    found = []
    for family in range(3, 46):
        if family in (socket.AF_INET6, socket.AF_NETLINK):
            continue
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            try:
                socket.socket(family, kind).close()
                found.append((family, kind))
            except OSError:
                continue
    return found


@attack("restricted")
def the_kernels_own_messages(t):
    import socket

    found = []
    for protocol in (4, 6, 9, 11, 12, 15, 16):
        try:
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol).close()
            found.append(protocol)
        except OSError:
            continue
    return found


@attack()
def names_of_the_machines_interfaces(t):
    import socket

    return [name for _, name in socket.if_nameindex() if name == t.interface]


@attack()
def connections_of_the_machine(t):
    return f":{t.port:04X} " in open("/proc/net/tcp").read()


def is_reached(fort, evidence):
    try:
        with socket.create_connection(("127.0.0.1", evidence), 2):
            return True
    except OSError:
        return False


@attack(after=is_reached)
def to_be_a_server_on_every_address(t):
    import socket

    door = globals()["door"] = socket.socket()
    door.bind(("0.0.0.0", 0))
    door.listen()
    return door.getsockname()[1]


@attack("restricted", secret=True)
def an_abstract_socket_of_the_host(t):
    import socket

    with socket.socket(socket.AF_UNIX) as way:
        way.settimeout(5)
        way.connect("\0" + t.host_abstract)
        return way.recv(100)


@attack(secret=True)
def a_socket_of_the_host_in_a_folder(t):
    import socket

    with socket.socket(socket.AF_UNIX) as way:
        way.settimeout(5)
        way.connect(t.host_socket)
        return way.recv(100)


@attack("restricted", user="only root may")
def the_network_of_the_server(t):
    with open(f"/proc/{t.server}/ns/net") as namespace:
        syscall("setns", namespace.fileno(), 0)
    return True


@attack("sandbox", root="there is no proxy", user="there is no proxy", passes="", secret=True)
def loopback_through_the_proxy(t):
    import os
    import socket

    host, _, port = os.environ["HTTP_PROXY"].rpartition("/")[2].partition(":")
    found = b""
    for name in ("127.0.0.1", "localhost", "0.0.0.0", "[::1]", "127.1", "[::ffff:127.0.0.1]", "2130706433", t.lan):
        for request in (f"CONNECT {name}:{t.port}", f"GET http://{name}:{t.port}/"):
            with socket.create_connection((host, int(port)), 5) as way:
                way.sendall(f"{request} HTTP/1.1\r\n\r\nin a tunnel who asks speaks first".encode())
                way.shutdown(socket.SHUT_WR)
                found += way.makefile("rb").read()
    return found


@attack("sandbox", root="there is no proxy", user="there is no proxy", passes="")
def a_host_that_is_not_listed_through_the_proxy(t):
    import os
    import socket

    host, _, port = os.environ["HTTP_PROXY"].rpartition("/")[2].partition(":")
    with socket.create_connection((host, int(port)), 5) as way:
        way.sendall(b"CONNECT example.com:443 HTTP/1.1\r\n\r\n")
        return b" 200 " in way.makefile("rb").readline()


@attack("sandbox", root="there is no proxy", user="there is no proxy", passes="", secret=True)
def loopback_through_the_proxy_in_other_words(t):
    import os
    import socket

    host, _, port = os.environ["HTTP_PROXY"].rpartition("/")[2].partition(":")
    names = ["localhost.", "LOCALHOST", "127.0.0.1.", "0", "0x7f.1", "0177.0.0.1", "[::ffff:7f00:1]", "[::1%25lo]"]
    names += [
        "[0:0:0:0:0:0:0:1]",
        "[64:ff9b::7f00:1]",
        "①27.0.0.1",
        "127。0。0。1",
        "user@127.0.0.1",
        "pypi.org@127.0.0.1",
    ]
    names += ["pypi.org:443@127.0.0.1", "pypi.org%00.127.0.0.1", "127.0.0.1%00.pypi.org", "127.0.0.1\0.pypi.org"]
    requests = [f"CONNECT {name}:{t.port} HTTP/1.1" for name in names]
    requests += [f"GET http://{name}:{t.port}/ HTTP/1.1" for name in names]
    requests += [f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{t.port}", f"GET http://127.0.0.1:{t.port}@localhost/ HTTP/1.1"]
    requests += [f"CONNECT unix:{t.host_socket}:1 HTTP/1.1", f"GET http+unix://{t.host_socket}/ HTTP/1.1"]
    requests += [f"CONNECT \0{t.host_abstract}:1 HTTP/1.1", f"CONNECT localhost:{t.port}:443 HTTP/1.1"]
    found = b""
    for request in requests:
        with socket.create_connection((host, int(port)), 5) as way:
            way.sendall(f"{request}\r\n\r\nin a tunnel who asks speaks first".encode())
            way.shutdown(socket.SHUT_WR)
            found += way.makefile("rb").read()
    return found


@attack("sandbox", root="there is no proxy", user="there is no proxy", passes="")
def the_server_itself_through_the_proxy(t):
    import os
    import socket

    host, _, port = os.environ["HTTP_PROXY"].rpartition("/")[2].partition(":")
    address = t.url.rpartition("/")[2]
    for request in (f"GET http://{address}/healthz", f"GET http://localhost:{address.partition(':')[2]}/healthz"):
        with socket.create_connection((host, int(port)), 5) as way:
            way.sendall(f"{request} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
            if b" 200 " in way.makefile("rb").readline():
                return True


@attack("sandbox", root="there is no proxy", user="there is no proxy", passes="")
def connections_of_everybody(t):
    """More than one session may have, each left in the middle of its first word."""
    import os
    import select
    import socket

    host, _, port = os.environ["HTTP_PROXY"].rpartition("/")[2].partition(":")
    held = []
    for _ in range(200):
        way = socket.create_connection((host, int(port)), 5)
        way.sendall(b"CONNECT py")
        held.append(way)
    ended = 0
    while held and (ready := select.select(held, [], [], 1)[0]):
        for way in ready:
            held.remove(way)
            ended += way.recv(1000).startswith(b"HTTP/1.1 503 ")
    return len(held) > 64 or ended < 100


def took_memory(fort, evidence):
    return fort.memory_taken() > 64 * 1024**2 or not fort.unharmed()


@attack("sandbox", root="there is no proxy", user="there is no proxy", passes="", after=took_memory)
def memory_of_the_server_through_the_proxy(t):
    """Words without end, and answers that nobody reads."""
    import contextlib
    import os
    import socket

    host, _, port = os.environ["HTTP_PROXY"].rpartition("/")[2].partition(":")
    sent = 0
    for line in (b"x" * 65536, b"X: y\r\n" * 10000, b"CONNECT a.example:443 HTTP/1.1\r\n\r\n" * 2000):
        for _ in range(40):
            way = socket.create_connection((host, int(port)), 5)
            way.settimeout(0.05)
            with contextlib.suppress(OSError):
                while sent < 1 << 30:
                    sent += way.send(line)
            globals().setdefault("unread", []).append(way)
    return sent
