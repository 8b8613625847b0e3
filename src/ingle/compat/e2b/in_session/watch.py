"""Program that prints a line for each change below a folder, until it is ended: the kind, and the path from there.

Its first line is `READY`. Arguments: the folder, and `recursive` or `flat`.
"""

import ctypes
import os
import struct
import sys

CREATE, MODIFY, DELETE, MOVED_FROM, MOVED_TO, ATTRIB = 0x100, 0x2, 0x200, 0x40, 0x80, 0x4
ONLY_FOLDERS, IS_FOLDER = 0x01000000, 0x40000000
KINDS = (
    (CREATE | MOVED_TO, "CREATE"),
    (MODIFY, "WRITE"),
    (DELETE, "REMOVE"),
    (MOVED_FROM, "RENAME"),
    (ATTRIB, "CHMOD"),
)
HEAD = struct.Struct("iIII")


def main(folder: str, recursive: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init()
    places: dict[int, str] = {}

    def watch(path: str) -> None:
        mask = CREATE | MODIFY | DELETE | MOVED_FROM | MOVED_TO | ATTRIB | ONLY_FOLDERS
        number = libc.inotify_add_watch(fd, os.fsencode(os.path.join(folder, path)), mask)
        if number < 0:
            if not path:
                sys.exit(os.strerror(ctypes.get_errno()))
            return
        places[number] = path
        for entry in os.scandir(os.path.join(folder, path)) if recursive else ():
            if entry.is_dir(follow_symlinks=False):
                watch(os.path.join(path, entry.name))

    watch("")
    print("READY", flush=True)
    while data := os.read(fd, 65536):
        start = 0
        while start < len(data):
            number, mask, _, length = HEAD.unpack_from(data, start)
            start += HEAD.size + length
            name = os.fsdecode(data[start - length : start].rstrip(b"\0"))
            if number not in places or not name:
                continue
            path = os.path.join(places[number], name)
            kind = next((kind for bits, kind in KINDS if mask & bits), "")
            if kind and "\n" not in path:
                print(kind, path.encode("utf-8", "replace").decode(), flush=True)
            if recursive and mask & (CREATE | MOVED_TO) and mask & IS_FOLDER:
                watch(path)


main(sys.argv[1], sys.argv[2] == "recursive")
