"""A module with the parts of torch that a session needs to have data on a GPU, and a fake driver behind it.

As the real driver does, it refuses every process but the one that initialised it, and it keeps its device files open.
`CARDS` in the environment is the number of cards, `CARD_BYTES` the size of all of them.
"""

import os
import sys
import types

import numpy

strided, sparse_coo = "strided", "sparse_coo"
uint8, float32, int64 = "uint8", "float32", "int64"


class OutOfMemoryError(RuntimeError):
    pass


class AcceleratorError(RuntimeError):
    pass


class Driver:
    """What this process has of the cards."""

    def __init__(self):
        self.pid = self.used = 0
        self.poisoned = False
        self.files = []

    def init(self):
        if self.pid and self.pid != os.getpid():
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        if not self.pid:
            self.pid = os.getpid()
            for name in ("nvidiactl", "nvidia0"):
                if os.path.exists(f"/dev/{name}"):
                    self.files.append(os.open(f"/dev/{name}", os.O_RDONLY))

    def call(self):
        self.init()
        if self.poisoned:
            raise AcceleratorError("CUDA error: an illegal memory access was encountered\nCompile with something")

    def take(self, size):
        self.call()
        if size and self.used + size > int(os.environ.get("CARD_BYTES", 1 << 40)):
            raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
        self.used += size


driver = Driver()


class device:
    def __init__(self, text):
        self.type, _, index = str(text).partition(":")
        self.index = int(index or 0) if self.type != "cpu" else None

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"


class UntypedStorage:
    def __init__(self, content, where="cpu", pinned=False):
        self.device = device(where)
        if self.device.type == "cuda":
            driver.take(content.nbytes)
        self.pinned = pinned
        self._content = content
        self._cdata = id(self)

    def nbytes(self):
        return self._content.nbytes

    @property
    def content(self):
        """The bytes. Those of a card, and pinned ones, are within reach of the driver's own process only."""
        if self.device.type == "cuda":
            driver.call()
        elif self.pinned:
            driver.init()
        return self._content


class Tensor:
    # As in torch, none of these is in the object's own dictionary.
    __slots__ = ("__dict__", "__weakref__", "_parts", "grad", "requires_grad")

    def __init__(self, storage, dtype, size, stride, offset=0):
        self._parts = (storage, dtype, tuple(size), tuple(stride), offset)
        self.requires_grad = False
        self.grad = None

    is_quantized = False
    is_leaf = True
    layout = strided
    dtype = property(lambda self: self._parts[1])
    device = property(lambda self: self._parts[0].device)
    is_conj = is_neg = is_inference = lambda self: False

    def untyped_storage(self):
        return self._parts[0]

    def is_pinned(self):
        return self._parts[0].pinned

    def size(self):
        return self._parts[2]

    def stride(self):
        return self._parts[3]

    def storage_offset(self):
        return self._parts[4]

    def numel(self):
        return int(numpy.prod(self._parts[2]))

    def element_size(self):
        return numpy.dtype(self.dtype).itemsize

    def requires_grad_(self, value):
        self.requires_grad = value
        return self

    def detach(self):
        return self

    def set_(self, storage, offset=0, size=None, stride=None):
        count = storage.nbytes() // self.element_size()
        self._parts = (storage, self.dtype, size or (count,), stride or (1,), offset)
        return self

    def numpy(self):
        if self.device.type != "cpu":
            raise TypeError("can't convert a cuda tensor to numpy")
        return self._look()

    def _look(self):
        storage, dtype, size, stride, offset = self._parts
        flat = storage.content.view(dtype)[offset:]
        return numpy.lib.stride_tricks.as_strided(flat, size, [each * flat.itemsize for each in stride])

    def __getitem__(self, part):
        storage, dtype, size, stride, offset = self._parts
        start, stop, _ = part.indices(size[0])
        return Tensor(storage, dtype, (stop - start,), stride, offset + start)

    def copy_(self, other):
        self._look()[...] = other._look()
        return self

    def to(self, where):
        if str(device(where)) == str(self.device):
            return self
        return _made(self._look(), where)

    def cpu(self):
        return self.to("cpu")

    def cuda(self):
        return self.to("cuda:0")

    def pin_memory(self):
        storage, *others = self._parts
        driver.call()
        return type(self)(UntypedStorage(storage.content.copy(), "cpu", True), *others)

    def view_from(self, offset):
        storage, dtype, size, stride, old = self._parts
        return Tensor(storage, dtype, (size[0] - offset,), stride, old + offset)

    def fill_(self, value):
        self._look()[...] = value
        return self

    def tolist(self):
        return self._look().tolist()


class Parameter(Tensor):
    __slots__ = ()

    def __init__(self, data, requires_grad=True):
        super().__init__(*data._parts)
        self.requires_grad = requires_grad


class Generator:
    def __init__(self, where="cpu"):
        self.device = device(where)
        self._state = bytearray(16)

    def get_state(self):
        return frombuffer(bytearray(self._state), dtype=uint8)

    def set_state(self, state):
        self._state = bytearray(state.numpy().tobytes())


def _made(array, where):
    array = numpy.array(array)
    stride = [each // array.itemsize for each in array.strides]
    return Tensor(UntypedStorage(array.reshape(-1).view("u1"), where), str(array.dtype), array.shape, stride)


def empty(count, dtype=float32, device="cpu", pin_memory=False):
    made = _made(numpy.empty(count, dtype), device)
    return made.pin_memory() if pin_memory else made


def tensor(values, dtype=float32, device="cpu"):
    return _made(numpy.array(values, dtype), device)


def frombuffer(content, dtype):
    return Tensor(UntypedStorage(numpy.frombuffer(content, "u1")), dtype, (len(content),), (1,))


_states = {"cpu": bytearray(8), "cuda:0": bytearray(8)}


def get_rng_state(where="cpu"):
    return frombuffer(bytearray(_states[where]), dtype=uint8)


def set_rng_state(state, where="cpu"):
    _states[where] = bytearray(state.numpy().tobytes())


def seed():
    _states["cpu"] = bytearray(os.urandom(8))


nn = sys.modules["torch.nn"] = types.ModuleType("torch.nn")
nn.Parameter = Parameter
Parameter.__module__, Parameter.__qualname__ = "torch.nn", "Parameter"

import torch.cuda  # noqa: E402, F401  it needs the names above
