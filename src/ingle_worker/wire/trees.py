"""Messages between the host and a file agent about a whole folder. They follow a request of the verb `tree`.

Each message is a length and JSON. Descriptors come with a request: one per file, in the order of the files.

host  -> agent   {"do": "list", "tracked": …, "rules": …, "layer": …}
agent -> host    lists of entries, in several messages; an empty list ends them
                 `tracked`: without entries that are ignored. `rules` are texts by the paths of their folders, or null:
                 the agent reads the files `.gitignore`. `layer`: the folder is one that overlayfs has written
host  -> agent   {"do": "find", "paths": [[path, deep], …]}
agent -> host    as above, with those of these entries that exist; if `deep`, with all that is below them
host  -> agent   {"do": "fetch", "files": [[path, limit], …]}, with a descriptor to write each file to
agent -> host    [[errno, mode, inode, size, modified, changed, steady], …]
host  -> agent   {"do": "apply", "steps": [[step, path, …], …], "draft": …}, with a descriptor to read each `file` from
agent -> host    [[errno, inode, size, modified, changed], …]
                 `draft`: the name of a file, beside the one that is written, as long as it is incomplete

Bytes of files pass by descriptors and never through the socket. A path is text with one character per byte, since names
of files need not be text.
"""

import os

LAYERS = "layers"
"""Folder of a live copy with one folder for each granted folder that it may write, by number."""

UPPER = "upper"
"""Folder in there with what the copy has written, as overlayfs stores it."""

MAX_FILES_PER_MESSAGE = 64
"""Files of one request. The kernel passes at most 253 descriptors at a time."""

MAX_ENTRIES_PER_MESSAGE = 1000
MAX_MESSAGE_BYTES = 16 * 1024**2
MAX_DEPTH = 100
MAX_RULES_FILE_BYTES = 64 * 1024
"""Size of a file with ignore rules. A larger one has none."""

MAX_RULES_BYTES = 4 * 1024**2
"""Size of all ignore rules of a folder."""

FILE, FOLDER, LINK, NOT_KEPT, REMOVED = "f", "d", "l", "x", "r"
"""Kinds of entries. An entry is [kind, path, mode, inode, size, modified, changed, text].

The text is the target of a link, or why an entry is not kept. In a layer there are entries that stand for a removed
one, and folders that hide what the folder below the layer has there: their text is OPAQUE.
"""

OPAQUE = "opaque"

MAKE_FOLDER, WRITE_FILE, MAKE_LINK, REMOVE, SET_MODE, SET_ATTRIBUTES = (
    *("folder", "file", "link", "remove", "mode", "attributes"),
)
"""Steps.

["folder", path]                            make a folder that its owner may change
["file", path, mode, modified, in_place]    write a file from the next descriptor
["link", path, target]                      make a symbolic link
["remove", path, folder]                    remove a file, a link or an empty folder
["mode", path, mode]                        set the permissions of a folder
["attributes", path, mode, modified]        set the permissions and the time of a file
"""


def encode_path(path: str) -> str:
    """Return a path of this system as text with one character per byte."""
    return os.fsencode(path).decode("latin-1")


def decode_path(text: str) -> str:
    """Return the path of this system that a text stands for."""
    return os.fsdecode(text.encode("latin-1"))
