"""Partition of a session's names into groups: two names are in one group if they reach the same object.

A group is saved and loaded as a unit, so that shared objects stay shared. Independent names are saved apart, so that a
small change is a small save. Objects without identity (numbers, text, imported objects) connect nothing. Neither do the
session's functions and classes: each is a *definition* with its own group, and others refer to it by a key. Nothing
here runs user code.
"""

import functools
import gc
import sys
import types
import weakref
from _weakref import getweakrefcount
from collections.abc import Iterator
from typing import Any

from ingle_worker.snapshot import definitions, reduce_running, reduce_torch
from ingle_worker.snapshot.reduce_builtin import loaded

BATCH = 4096
LONG_TEXT_CHARS = 4096
"""Text of this length is saved once, even if several names refer to it."""

MAX_SEEN = 2_000_000
"""Maximum number of remembered objects. All later ones form one group, which is correct but saved more often."""

_count: Any = sys.getrefcount
_referent: Any = weakref.ReferenceType.__call__

ATOM, PLAIN, SPECIAL, ASKED, TEXT = 0, 1, 2, 3, 9
MODULE, MEMBER, DEFINED = 3, 4, 5
"""How an object is followed: not at all, by the garbage collector, or by code here. The others need a check first."""

WEAK = (weakref.WeakValueDictionary, weakref.WeakKeyDictionary, weakref.WeakSet)

ATOMS: frozenset[type] = frozenset(
    {
        int,
        float,
        complex,
        bool,
        range,
        slice,
        type(None),
        type(...),
        type(NotImplemented),
        types.FrameType,
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.ClassMethodDescriptorType,
        types.GetSetDescriptorType,
        types.MemberDescriptorType,
    }
)
"""Types that are not followed. Frames are among them: they cannot be saved, and lead to everything."""


class Group:
    """Names and definitions that are saved as a unit. The groups in `needs` must be loaded first."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.keys: list[str] = []
        self.needs: set[Group] = set()
        self.views: dict[int, Any] = {}
        """Arrays of which several others in this group are views, by id."""

    def __repr__(self) -> str:
        return f"<Group {self.names} {self.keys}>"


class Groups:
    """All groups in loading order, and the key of each referenced definition."""

    def __init__(
        self, ordered: list[Group], keys: dict[int, str], defined: dict[str, Any], of_torch: list[Any]
    ) -> None:
        self.ordered = ordered
        self.keys = keys
        self.defined = defined
        self.of_torch = of_torch
        """All tensors and generators of torch that the names reach."""


def find(space: dict[str, Any], apart: tuple[Any, ...] = ()) -> Groups:
    """Return the groups of these names. Objects in `apart`, such as the namespace, connect nothing."""
    return _Walk(apart).run(space)


class _Walk:
    def __init__(self, apart: tuple[Any, ...]) -> None:
        self._alive = list(apart)
        self._apart = {id(each) for each in apart} | _library_objects()
        self._parents: list[int] = []
        self._seen: dict[int, int] = {}
        """The root that reached an object first, by the object's id."""
        self._roots_of_definitions: dict[int, int] = {}
        self._definitions: list[tuple[int, Any]] = []
        self._edges: set[tuple[int, int]] = set()
        self._viewed: dict[int, list[Any]] = {}
        """Arrays with views, by id: one entry per view."""
        self._arrays: set[int] = set()
        self._spaces: dict[int, int] = {}
        self._overflow_root: int | None = None
        self._memories: dict[int, int] = {}
        """Roots of tensor memories, by id of the memory."""
        self._of_torch: list[Any] = []
        self._array = loaded("numpy", "ndarray")
        self._tensor = loaded("torch", "Tensor")
        # By id: a metaclass may have any __hash__ and __eq__, or none.
        self._ways = {id(str): TEXT, id(bytes): TEXT, **{id(kind): ATOM for kind in ATOMS}}

    def run(self, space: dict[str, Any]) -> Groups:
        roots = {name: self._new_root() for name in space}
        for name, value in space.items():
            self._reach(roots[name], [value])
            # A name of a definition joins the definition's group.
            own = self._roots_of_definitions.get(id(value))
            if own is not None:
                self._unite(roots[name], own)
        done = 0
        while done < len(self._definitions):
            number, definition = self._definitions[done]
            done += 1
            if type(definition) is types.FunctionType and definitions.is_own_globals(definition.__globals__):
                # Not everything in these globals is followed, but functions that share them stay together.
                self._unite(number, self._spaces.setdefault(id(definition.__globals__), number))
            self._reach(number, definitions.parts_of(definition), defining=True)
        return self._gather(roots)

    # --- union and find ---

    def _new_root(self) -> int:
        self._parents.append(len(self._parents))
        return len(self._parents) - 1

    def _find(self, number: int) -> int:
        parents = self._parents
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    def _unite(self, one: int, other: int) -> None:
        one, other = self._find(one), self._find(other)
        if one != other:
            self._parents[max(one, other)] = min(one, other)

    # --- walking ---

    def _reach(self, root: int, values: list[Any], defining: bool = False) -> None:
        """Assign everything reachable from `values` to this root."""
        # An object with one reference cannot be shared, so it is not remembered. How many references the interpreter
        # adds here depends on its version, so it is measured on an object in a list.
        probe = [object()]
        for each in probe:
            alone = _count(each) + 1
        ways, seen = self._ways, self._seen
        stack: list[tuple[list[Any], bool]] = [(values, True)]
        while stack:
            found, shared = stack.pop()
            further: list[Any] = []
            for each in found:
                kind = type(each)
                way = ways.get(id(kind))
                if way is None:
                    way = ways[id(kind)] = _way_of(kind, self._array, self._tensor)
                if way == ATOM or ((kind is tuple or kind is frozenset) and not each):
                    continue
                if way == TEXT:
                    if len(each) < LONG_TEXT_CHARS:
                        continue
                    way = PLAIN
                if way >= ASKED:
                    if way == DEFINED and definitions.is_definition(each):
                        self._refer(root, each, defining)
                        continue
                    if way == MEMBER:
                        if definitions.is_definition(kind):
                            self._refer(root, kind, defining)
                        continue
                    if way == DEFINED or (way == MODULE and definitions.is_importable_module(each)):
                        continue
                number = id(each)
                if way == SPECIAL:
                    self._arrays.add(number)
                if shared or _count(each) > alone or getweakrefcount(each):
                    owner = seen.get(number)
                    if owner is not None:
                        self._unite(root, owner)
                        continue
                    if number in self._apart:
                        continue
                    if len(seen) >= MAX_SEEN:
                        if self._overflow_root is None:
                            self._overflow_root = root
                        self._unite(root, self._overflow_root)
                        continue
                    seen[number] = root
                    # Keep temporary objects alive, or another object could get the same id.
                    self._alive.append(each)
                if way in (PLAIN, MODULE):
                    further.append(each)
                else:
                    self._push_special(root, stack, each)
            del found
            # Not a `for` loop: its variable would be one more reference.
            while further:
                batch = further[-BATCH:]
                del further[-BATCH:]
                stack.append((gc.get_referents(*batch), False))

    def _refer(self, root: int, definition: Any, defining: bool) -> None:
        number = id(definition)
        own = self._roots_of_definitions.get(number)
        if own is None:
            own = self._roots_of_definitions[number] = self._new_root()
            self._definitions.append((own, definition))
        if defining:
            self._unite(root, own)
        else:
            self._edges.add((root, number))

    def _push_special(self, root: int, stack: list[tuple[list[Any], bool]], value: Any) -> None:
        """Push objects that the garbage collector does not report: referents of weak references, contents of arrays."""
        if isinstance(value, weakref.ReferenceType):
            stack.append(([_referent(value)], True))
            if type(value) is weakref.ReferenceType:
                stack.append(([value.__callback__], True))
            return
        if definitions.derives(type(value), *WEAK):
            pairs = (
                list(value) if definitions.derives(type(value), weakref.WeakSet) else [*value.keys(), *value.values()]
            )
            stack.append((pairs, True))
            return
        if type(value) is functools._lru_cache_wrapper:
            stack.append(([value.__wrapped__, vars(value)], True))  # not the cached results
            return
        if definitions.derives(type(value), self._tensor):
            self._of_torch.append(value)
            memory = reduce_torch.memory_of(value)
            if memory is not None:
                self._unite(root, self._memories.setdefault(memory, root))
            stack.append((reduce_torch.parts_of(value), True))
            return
        if definitions.derives(type(value), loaded("torch", "Generator")):
            self._of_torch.append(value)
            return
        if not definitions.derives(type(value), self._array):
            stack.append((reduce_running.parts_of(value), True))
            return
        base = value.base
        if type(base) is self._array:
            self._viewed.setdefault(id(base), []).append(base)
            if id(base) in self._seen:
                self._unite(root, self._seen[id(base)])
            else:
                self._seen[id(base)] = root
                self._push_special(root, stack, base)
        elif base is not None:
            stack.append(([base], True))
        if value.dtype.hasobject:
            flat = value.reshape(-1)
            starts = range(0, flat.size, BATCH)
            stack += [(flat[start : start + BATCH].tolist(), False) for start in starts]

    # --- the result ---

    def _gather(self, roots: dict[str, int]) -> Groups:
        groups: dict[int, Group] = {}

        def group_of(root: int) -> Group:
            found = self._find(root)
            if found not in groups:
                groups[found] = Group()
            return groups[found]

        for name, root in roots.items():
            group_of(root).names.append(name)
        wanted = {number for _, number in self._edges}
        keys: dict[int, str] = {}
        defined: dict[str, Any] = {}
        taken: dict[str, int] = {}
        for root, definition in self._definitions:
            if id(definition) not in wanted:
                continue
            group = group_of(root)
            name = definitions.name_of(definition)
            taken[name] = taken.get(name, 0) + 1
            key = name if taken[name] == 1 else f"{name}#{taken[name]}"
            keys[id(definition)], defined[key] = key, definition
            group.keys.append(key)
        for root, number in self._edges:
            one, other = group_of(root), group_of(self._roots_of_definitions[number])
            if one is not other:
                one.needs.add(other)
        for number, bases in self._viewed.items():
            if len(bases) > 1 or number in self._arrays:
                group_of(self._seen[number]).views[number] = bases[0]
        ordered = _in_order([group for group in groups.values() if group.names or group.keys])
        return Groups(ordered, keys, defined, self._of_torch)


def _in_order(groups: list[Group]) -> list[Group]:
    """Sort groups after those they need. Groups that need each other are merged."""
    ordered: list[Group] = []
    numbers: dict[Group, int] = {}
    lowest: dict[Group, int] = {}
    open_: list[Group] = []
    merged: dict[Group, Group] = {}
    for start in groups:
        if start in numbers:
            continue
        work: list[tuple[Group, Iterator[Group]]] = []

        def enter(group: Group) -> None:
            numbers[group] = lowest[group] = len(numbers)
            open_.append(group)
            work.append((group, iter(sorted(group.needs, key=_first))))  # noqa: B023

        enter(start)
        while work:
            group, needs = work[-1]
            for need in needs:
                if need not in numbers:
                    enter(need)
                    break
                if need in open_:
                    lowest[group] = min(lowest[group], numbers[need])
            else:
                work.pop()
                if work:
                    above = work[-1][0]
                    lowest[above] = min(lowest[above], lowest[group])
                if lowest[group] == numbers[group]:
                    together = []
                    while True:
                        together.append(open_.pop())
                        if together[-1] is group:
                            break
                    ordered.append(_merge(together, merged))
    for group in ordered:
        group.needs = {merged.get(need, need) for need in group.needs} - {group}
        group.names.sort()
        group.keys.sort()
    return ordered


def _first(group: Group) -> tuple[list[str], list[str]]:
    return (group.names, group.keys)


def _merge(together: list[Group], merged: dict[Group, Group]) -> Group:
    one = together[-1]
    for other in together[:-1]:
        merged[other] = one
        one.names += other.names
        one.keys += other.keys
        one.needs |= other.needs
        one.views.update(other.views)
    return one


def _library_objects() -> set[int]:
    """Return ids of module attributes whose type belongs to the same package, such as registries and settings.

    They belong to the library, and many values of a session may refer to them.
    """
    found = set()
    for name, module in list(sys.modules.items()):
        if type(module) is not types.ModuleType or name == definitions.MAIN:
            continue
        package = name.partition(".")[0]
        for value in list(vars(module).values()):
            kind = type(value)
            if kind.__flags__ & definitions.HEAP_TYPE:
                home = definitions.module_of(kind)
                if type(home) is str and home.partition(".")[0] == package:
                    found.add(id(value))
    return found


def _way_of(kind: type, array: type, tensor: type) -> int:
    """Return how objects of a type are followed."""
    if issubclass(kind, type) or kind is types.FunctionType or definitions.is_by_name(kind):
        return DEFINED
    if issubclass(kind, types.ModuleType):
        return MODULE
    # Members of an enumeration are found through their class, a logger by its name.
    if isinstance(kind, loaded("enum", "EnumMeta")):
        return MEMBER
    if definitions.derives(kind, loaded("logging", "Logger")):
        return ATOM
    if any(kind is each for each in (tensor, loaded("torch.nn", "Parameter"), loaded("torch", "Generator"))):
        return SPECIAL
    special = (weakref.ReferenceType, array, functools._lru_cache_wrapper, *WEAK)
    return SPECIAL if definitions.derives(kind, *special) or reduce_running.handles(kind) else PLAIN
