"""Saving of torch tensors: shared memory stays shared, gradients are saved, and data of a GPU goes back to one.

torch's own pickling copies the whole memory for each tensor and drops its gradient. Plain tensors in CPU memory or on
a GPU are handled here, all others by torch. This runs in a copy of the process, which cannot use the driver of a GPU.
So data of a GPU is read from host copies, which the session made before it was copied.
"""

import importlib
import pickle
import sys
from typing import Any

from ingle_worker.snapshot import chunks
from ingle_worker.snapshot.rebuild.registry import CURRENT, MAKERS, CannotRebuild, maker
from ingle_worker.snapshot.reduce_builtin import Unsavable

CPU = "cpu"

STAGE_BYTES = 32 * 1024 * 1024
"""Size of the pinned memory through which data leaves a card. Into other memory the driver copies much slower."""


class HostCopies:
    """Copies of a session's GPU data in host memory, made while it can still be read."""

    def __init__(self, found: list[Any]) -> None:
        """`found` are all tensors and generators of the session."""
        self.why_missing = "it is on a GPU, and was not read from there"
        """Why some data has no copy."""
        self.defaults: list[bytes] = []
        """States of the GPUs' own generators."""
        self._generators: dict[int, Any] = {}
        """Generators, by id."""
        self._states: dict[int, bytes] = {}
        self._memories: dict[int, Any] = {}
        """Memory that the driver gave out, by id; then its bytes beside it."""
        self._bytes: dict[int, Any] = {}
        self._others: dict[int, Any] = {}
        """Tensors of other layouts, by id."""
        self._moved: dict[int, Any] = {}
        torch: Any = sys.modules.get("torch")
        for each in found:
            if isinstance(each, torch.Generator):
                self._generators[id(each)] = each
                continue
            self._add_tensor(each)
            if each.is_leaf and each.grad is not None:
                self._add_tensor(each.grad)

    def _add_tensor(self, value: Any) -> None:
        if not is_plain(value):
            if value.device.type != CPU:
                self._others[id(value)] = value
        elif value.device.type != CPU or value.is_pinned():
            storage = value.untyped_storage()
            self._memories[storage._cdata] = storage

    @property
    def size(self) -> int:
        """Return the bytes that the copies need."""
        others: int = sum(each.numel() * each.element_size() for each in self._others.values() if _is_dense(each))
        memories: int = sum(storage.nbytes() for storage in self._memories.values())
        return others + memories

    def fill(self) -> None:
        """Copy everything. Raises what the driver raises, and has what was copied before."""
        torch: Any = sys.modules["torch"]
        on_card = {number: each for number, each in self._memories.items() if each.device.type != CPU}
        # Pinned memory first: it can be read without the driver, in this process.
        for number in self._memories.keys() - on_card.keys():
            source = torch.empty(0, dtype=torch.uint8).set_(self._memories[number])
            self._bytes[number] = _tensor_of(bytearray(source.numpy()))
        for device in {str(each.device) for each in on_card.values()}:
            torch.cuda.synchronize(device)  # streams of the session's own may still write
        stage = _stage(max((each.nbytes() for each in on_card.values()), default=0))
        for number, storage in on_card.items():
            self._bytes[number] = _read(storage, stage)
        for number, value in self._others.items():
            self._moved[number] = value.detach().cpu()
        self.defaults = [bytes_of(each) for each in torch.cuda.get_rng_state_all()]
        self._states = {number: bytes_of(each.get_state()) for number, each in self._generators.items()}

    def bytes_of(self, storage: Any) -> Any:
        """Return the copy of this memory, or None if it is ordinary memory."""
        return self._bytes.get(storage._cdata)

    def lacks(self, storage: Any) -> bool:
        """Return whether this memory of the driver could not be copied."""
        return storage._cdata in self._memories and storage._cdata not in self._bytes

    def moved(self, value: Any) -> Any:
        return self._moved.get(id(value))

    def state_of(self, generator: Any) -> bytes | None:
        return self._states.get(id(generator))


def _stage(size: int) -> Any:
    """Return pinned memory of at most this size, or ordinary memory where none can be pinned."""
    torch: Any = sys.modules["torch"]
    size = min(size, STAGE_BYTES)
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=size > 0)
    except RuntimeError:  # a limit of locked memory
        return torch.empty(size, dtype=torch.uint8)


def _read(storage: Any, stage: Any) -> Any:
    """Return a copy of memory on a card, in host memory."""
    torch: Any = sys.modules["torch"]
    size = storage.nbytes()
    source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    made = chunks.memory(size)
    target, through = memoryview(made), memoryview(stage.numpy())
    for start in range(0, size, STAGE_BYTES):
        count = min(STAGE_BYTES, size - start)
        stage[:count].copy_(source[start : start + count])
        target[start : start + count] = through[:count]
    return _tensor_of(made)


def _tensor_of(content: Any) -> Any:
    """Return a tensor of these bytes, in the same memory."""
    torch: Any = importlib.import_module("torch")
    return torch.frombuffer(content, dtype=torch.uint8) if len(content) else torch.empty(0, dtype=torch.uint8)


host_copies: HostCopies | None = None
"""Copies of this process's GPU data. There are some from just before a fork on, in the copy for good."""


def bytes_of(tensor: Any) -> bytes:
    content: bytes = tensor.numpy().tobytes()
    return content


def _is_dense(value: Any) -> bool:
    torch: Any = sys.modules["torch"]
    return value.layout is torch.strided


def is_plain(value: Any) -> bool:
    """Return whether this is a strided tensor without special flags or hooks."""
    return bool(
        _is_dense(value)
        and value.device.type != "meta"
        and not (value.is_quantized or value.is_conj() or value.is_neg() or value.is_inference())
        and not getattr(value, "_backward_hooks", None)
    )


def memory_of(value: Any) -> int | None:
    """Return an id that tensors with the same memory have in common, or None."""
    return value.untyped_storage()._cdata if is_plain(value) else None


def parts_of(value: Any) -> list[Any]:
    """Return the objects that a tensor refers to besides its memory."""
    return [value.grad if value.is_leaf else None, vars(value)]


class Memory:
    """Memory of tensors. It references the storage, so that its id stays valid."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def __reduce__(self) -> Any:
        torch: Any = sys.modules["torch"]
        device = str(self._storage.device)
        copy = None if host_copies is None else host_copies.bytes_of(self._storage)
        if copy is None:
            if device != CPU or (host_copies is not None and host_copies.lacks(self._storage)):
                raise Unsavable(_why_missing())
            copy = torch.empty(0, dtype=torch.uint8).set_(self._storage)
        content = pickle.PickleBuffer(copy.numpy())
        if device == CPU:
            return (MAKERS["tensor_memory"], (content,))
        return (MAKERS["device_memory"], (content, device))


def tensor(value: Any, memories: dict[int, Memory]) -> Any:
    """Return the reduce value of a tensor."""
    if not is_plain(value):
        return _other_tensor(value) if value.device.type not in (CPU, "meta") else NotImplemented
    storage = value.untyped_storage()
    memory = memories.setdefault(storage._cdata, Memory(storage))
    made = (type(value), memory, value.dtype, tuple(value.size()), value.stride(), value.storage_offset())
    return (MAKERS["tensor_again"], made, _state_of(value), None, None, MAKERS["tensor_state"])


def _other_tensor(value: Any) -> Any:
    """Return the reduce value of a tensor of a GPU that is sparse, quantised or the like."""
    if getattr(value, "_backward_hooks", None):
        raise Unsavable("it is on a GPU and has hooks")
    moved = None if host_copies is None else host_copies.moved(value)
    if moved is None:
        raise Unsavable(_why_missing())
    made = (type(value), moved, str(value.device))
    return (MAKERS["tensor_on_device"], made, _state_of(value), None, None, MAKERS["tensor_state"])


def _state_of(value: Any) -> dict[str, Any]:
    return {"requires_grad": value.requires_grad, "grad": value.grad if value.is_leaf else None, "own": vars(value)}


def generator(value: Any) -> Any:
    """Return the reduce value of a generator of random numbers."""
    state = None if host_copies is None else host_copies.state_of(value)
    if state is None:
        if value.device.type != CPU:
            raise Unsavable(_why_missing())
        state = bytes_of(value.get_state())
    return (MAKERS["torch_generator"], (str(value.device), state))


def _why_missing() -> str:
    return "it is on a GPU" if host_copies is None else host_copies.why_missing


# --- random numbers ---


def random_states() -> dict[str, Any]:
    """Return the states of torch's own generators."""
    torch: Any = sys.modules["torch"]
    return {"cpu": bytes_of(torch.get_rng_state()), "cuda": [] if host_copies is None else host_copies.defaults}


def restore_random(states: dict[str, Any]) -> None:
    """Set the states of torch's own generators, if torch is loaded."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    torch.set_rng_state(_state_tensor(torch, states["cpu"]))
    for number, state in enumerate(states["cuda"]):
        if landing(f"cuda:{number}") == f"cuda:{number}":
            torch.cuda.set_rng_state(_state_tensor(torch, state), f"cuda:{number}")


def _state_tensor(torch: Any, state: bytes) -> Any:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


# --- loading ---


def landing(device: str) -> str:
    """Return where data of a device goes: there, to the first GPU if there are fewer now, or to CPU memory."""
    kind, _, index = device.partition(":")
    counts = CURRENT.get().devices
    if kind not in counts:
        module: Any = getattr(importlib.import_module("torch"), kind, None)
        counts[kind] = module.device_count() if module is not None and module.is_available() else 0
    if int(index or 0) < counts[kind]:
        return device
    found = f"{kind}:0" if counts[kind] else CPU
    CURRENT.get().moved[device] = found
    return found


@maker
def tensor_memory(content: Any) -> Any:
    return _tensor_of(content).untyped_storage()


@maker
def device_memory(content: Any, device: str) -> Any:
    torch: Any = importlib.import_module("torch")
    return torch.empty(0, dtype=torch.uint8).set_(tensor_memory(content)).to(landing(device)).untyped_storage()


@maker
def tensor_again(cls: Any, memory: Any, dtype: Any, size: Any, stride: Any, offset: int) -> Any:
    torch: Any = importlib.import_module("torch")
    made = torch.empty(0, dtype=dtype, device=memory.device).set_(memory, offset, size, stride)
    return made if cls is torch.Tensor else torch.nn.Parameter(made, requires_grad=False)


@maker
def tensor_on_device(cls: Any, content: Any, device: str) -> Any:
    torch: Any = importlib.import_module("torch")
    made = content.to(landing(device))
    return made if cls is torch.Tensor else torch.nn.Parameter(made, requires_grad=False)


@maker
def tensor_state(target: Any, state: dict[str, Any]) -> None:
    if state["requires_grad"]:
        target.requires_grad_(True)
    if state["grad"] is not None:
        target.grad = state["grad"]
    vars(target).update(state["own"])


@maker
def torch_generator(device: str, state: bytes) -> Any:
    torch: Any = importlib.import_module("torch")
    if device != CPU and landing(device) == CPU:
        raise CannotRebuild(f"it is a generator of {device}, and this session has no GPU")
    made = torch.Generator(CPU if device == CPU else landing(device))
    made.set_state(_state_tensor(torch, state))
    return made
