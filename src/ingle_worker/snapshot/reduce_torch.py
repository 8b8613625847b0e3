"""Saving of torch tensors: shared memory stays shared, and gradients are saved.

torch's own pickling copies the whole memory for each tensor and drops its gradient. Only plain tensors in CPU memory
are handled here, all others by torch.
"""

import importlib
import pickle
import sys
from typing import Any

from ingle_worker.snapshot.rebuild.registry import MAKERS, maker


def is_plain(value: Any) -> bool:
    """Return whether this is a strided CPU tensor without special flags or hooks."""
    torch: Any = sys.modules["torch"]
    return bool(
        value.layout is torch.strided
        and value.device.type == "cpu"
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
        content = torch.empty(0, dtype=torch.uint8).set_(self._storage).numpy()
        return (MAKERS["tensor_memory"], (pickle.PickleBuffer(content),))


def tensor(value: Any, memories: dict[int, Memory]) -> Any:
    """Return the reduce value of a tensor."""
    if not is_plain(value):
        return NotImplemented
    storage = value.untyped_storage()
    memory = memories.setdefault(storage._cdata, Memory(storage))
    made = (type(value), memory, value.dtype, tuple(value.size()), value.stride(), value.storage_offset())
    state = {"requires_grad": value.requires_grad, "grad": value.grad if value.is_leaf else None, "own": vars(value)}
    return (MAKERS["tensor_again"], made, state, None, None, MAKERS["tensor_state"])


@maker
def tensor_memory(content: Any) -> Any:
    torch: Any = importlib.import_module("torch")
    if not len(content):
        return torch.empty(0, dtype=torch.uint8).untyped_storage()
    return torch.frombuffer(content, dtype=torch.uint8).untyped_storage()


@maker
def tensor_again(cls: Any, memory: Any, dtype: Any, size: Any, stride: Any, offset: int) -> Any:
    torch: Any = importlib.import_module("torch")
    made = torch.empty(0, dtype=dtype).set_(memory, offset, size, stride)
    return made if cls is torch.Tensor else torch.nn.Parameter(made, requires_grad=False)


@maker
def tensor_state(target: Any, state: dict[str, Any]) -> None:
    if state["requires_grad"]:
        target.requires_grad_(True)
    if state["grad"] is not None:
        target.grad = state["grad"]
    vars(target).update(state["own"])
