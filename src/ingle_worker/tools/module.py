"""The module `ingle_tools`, also importable as `tools` where the user has no module of that name.

It asks the host for servers and tools when they are first used, so that a session without tools pays nothing.
"""

import importlib
import importlib.machinery
import json
import sys
import types
from typing import Any

from ingle_worker.session.interrupts import Interrupts
from ingle_worker.session.link import Link
from ingle_worker.session.output_streams import OutputStreams
from ingle_worker.tools import values
from ingle_worker.tools.calls import Calls
from ingle_worker.tools.functions import make_function
from ingle_worker.wire import signatures
from ingle_worker.wire.cells import LIST_SERVERS, LIST_TOOLS, SEARCH

NAME, ALIAS = "ingle_tools", "tools"

DOC = """Tools: functions outside of this session that its code may call.

    import tools
    tools.search("open issues")                      # finds tools by words
    help(tools.github)                               # lists the tools of a server
    tools.github.search_issues(query="is:open")      # calls one
    await tools.github.search_issues.aio(query="…")  # the same without blocking the event loop

A failure raises tools.ToolError. A name that is no identifier is found as tools["my-server"]["my-tool"], too.
"""


class ServerModule(types.ModuleType):
    """Tools of one server, as functions."""

    def __init__(self, calls: Calls, key: str, name: str, doc: str) -> None:
        super().__init__(f"{NAME}.{name}", doc)
        self.__dict__["_calls"] = calls
        self.__dict__["_key"] = key
        self.__dict__["_names"] = {}
        self.__dict__["_version"] = None

    def _load(self) -> dict[str, str]:
        """Make the functions of all tools, if the host has others than those of the last time."""
        found = json.loads(self._calls.request(LIST_TOOLS, self._key, data=values.encode({"known": self._version})))
        if found["version"] == self._version:
            return self._names  # type: ignore[no-any-return]
        for name in self._names.values():
            self.__dict__.pop(name, None)
        tools = found["tools"]
        names = signatures.python_names([tool["name"] for tool in tools], RESERVED)
        for name, tool in zip(names, tools, strict=True):
            self.__dict__[name] = make_function(self._calls, self._key, self.__name__, name, tool)
        self.__dict__["_names"] = {tool["name"]: name for name, tool in zip(names, tools, strict=True)}
        self.__dict__["_version"] = found["version"]
        return self._names  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if not _is_hook(name):
            self._load()
            if name in self._names.values():
                return self.__dict__[name]
            if name in self._names:
                return self.__dict__[self._names[name]]
        raise AttributeError(f"the server {self._key!r} has no tool {name!r}; see dir({NAME}.{self._key})")

    def __getitem__(self, name: str) -> Any:
        names = self._load()
        if name not in names:
            raise KeyError(name)
        return self.__dict__[names[name]]

    def __dir__(self) -> list[str]:
        return sorted(self._load().values())

    @property
    def __all__(self) -> list[str]:
        return self.__dir__()

    def __repr__(self) -> str:
        return f"<tools of {self._key!r}>"

    def __reduce__(self) -> Any:
        return (importlib.import_module, (self.__name__,))


RESERVED = frozenset(("_calls", "_key", "_names", "_version", "_load"))
"""Names that a server's module uses itself."""


def _is_hook(name: str) -> bool:
    """Return whether Python or a library looks for this name in any object."""
    return name.startswith("_") and name.endswith("_")


def _named(servers: dict[str, ServerModule], name: str) -> ServerModule | None:
    found = servers.get(name)
    if found is None:
        for module in servers.values():
            if module.__name__ == f"{NAME}.{name}":
                return module
    return found


class ToolsModule(types.ModuleType):
    """All servers, as modules."""

    ToolError = values.ToolError
    Media = values.Media
    Resource = values.Resource

    def __init__(self, calls: Calls) -> None:
        super().__init__(NAME, DOC)
        self.__dict__["__path__"] = []  # makes `import tools.github` possible
        self.__dict__["_calls"] = calls
        self.__dict__["_media"] = values._media
        self.__dict__["_servers"] = {}

    def search(self, query: str, limit: int = 10) -> list[str]:
        """Return the tools that fit these words best, each as a line: where it is, its signature, what it does."""
        asked = values.encode({"query": str(query), "limit": int(limit)})
        found: list[str] = json.loads(self._calls.request(SEARCH, data=asked))["found"]
        return found

    def _load(self) -> dict[str, ServerModule]:
        found = json.loads(self._calls.request(LIST_SERVERS))["servers"]
        names = signatures.python_names([each["name"] for each in found], frozenset(("search",)))
        known: dict[str, ServerModule] = self._servers
        made: dict[str, ServerModule] = {}
        for name, each in zip(names, found, strict=True):
            module = known.get(each["name"])
            if module is None or module.__name__ != f"{NAME}.{name}":
                doc = signatures.visible(each["description"], 2000) or f"Tools of the server {each['name']!r}."
                module = ServerModule(self._calls, each["name"], name, doc)
                module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, self._finder)
            made[each["name"]] = module
        for module in known.values():
            sys.modules.pop(module.__name__, None)
        for module in made.values():
            sys.modules[module.__name__] = module
        self.__dict__["_servers"] = made
        return made

    def _find(self, name: str) -> ServerModule | None:
        """Return the server with this name, or with this name in Python. Ask the host only if it is not known."""
        return _named(self._servers, name) or _named(self._load(), name)

    def __getattr__(self, name: str) -> Any:
        found = None if _is_hook(name) else self._find(name)
        if found is None:
            raise AttributeError(f"there is no server {name!r}; see dir({NAME})")
        return found

    def __getitem__(self, name: str) -> ServerModule:
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found

    def __dir__(self) -> list[str]:
        servers = [each.__name__.rpartition(".")[2] for each in self._load().values()]
        return sorted([*servers, "search", "ToolError", "Media", "Resource"])

    @property
    def __all__(self) -> list[str]:
        return self.__dir__()

    def __reduce__(self) -> Any:
        return (importlib.import_module, (NAME,))


class Finder:
    """Finder of `ingle_tools` and of modules below it. A second one, last of all, finds `tools`."""

    def __init__(self, module: ToolsModule, name: str) -> None:
        self._module = module
        self._name = name

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name == self._name:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        if name.startswith(self._name + ".") and sys.modules.get(self._name) is self._module:
            server = name[len(self._name) + 1 :]
            try:
                found = self._module._find(server)
            except values.ToolError:
                return None
            if found is not None:
                return importlib.machinery.ModuleSpec(name, self)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__
        found = self._module if name == self._name else self._module._find(name[len(self._name) + 1 :])
        assert found is not None
        # The import returns what stands here, whatever it has created.
        sys.modules[name] = found


def install(link: Link, interrupts: Interrupts, output: OutputStreams) -> None:
    """Make the module importable."""
    module = ToolsModule(Calls(link, interrupts, output.is_background))
    finder = module.__dict__["_finder"] = Finder(module, NAME)
    module.__spec__ = importlib.machinery.ModuleSpec(NAME, finder, is_package=True)  # type: ignore[arg-type]
    sys.meta_path.insert(0, finder)
    sys.meta_path.append(Finder(module, ALIAS))
