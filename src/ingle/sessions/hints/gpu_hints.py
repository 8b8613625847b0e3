"""Hints about GPUs: why a library finds none in a session, and how a session gets one."""

import re

from ingle.isolation.gpus import ALL, Gpus
from ingle.sessions.cells.hints import Failure, Hint

NAMES = ("RuntimeError", "AcceleratorError", "CUDARuntimeError", "CUDADriverError", "JaxRuntimeError")
MAX_TEXT_CHARS = 2000

WITHOUT_CARD = re.compile(
    r"no nvidia driver|no cuda gpus|no cuda-capable device|cudaErrorNoDevice|CUDA_ERROR_NO_DEVICE|Error 304"
    r"|CUDA unknown error|insufficient driver|cudaErrorInsufficientDriver|no HIP GPUs|hipErrorNoDevice",
    re.IGNORECASE,
)
"""What libraries say that find no card, or cannot talk to its driver."""


BROKEN = re.compile(
    r"illegal memory access|illegal address|device-side assert|unspecified launch failure|misaligned address"
    r"|illegal instruction|hardware stack error|uncorrectable ECC",
    re.IGNORECASE,
)
"""Errors after which the driver refuses every further call of the process."""

IS_BROKEN = (
    "the CUDA context of this session is broken, and every further use of the GPU in it fails: roll back to a "
    "checkpoint, or fork the session, which copies all that is not on the GPU"
)

ASKS = re.compile(r"\bcuda\s*\.\s*(?:is_available|device_count)\s*\(")
"""Code that asks for a card and gets an answer, not an error."""


class GpuHints:
    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus

    async def find(self, failure: Failure) -> str | None:
        """Return a sentence if the session has no GPU, or its context is broken, and the exception is about that."""
        if BROKEN.search(failure.value[:MAX_TEXT_CHARS]) is not None and "CUDA" in failure.value:
            return IS_BROKEN
        if failure.gpus or WITHOUT_CARD.search(failure.value[:MAX_TEXT_CHARS]) is None:
            return None
        if not self._gpus.found:
            return "this machine has no GPU that ingle knows; `ingle doctor` tells what it looked for"
        return self._how_to_get_one

    def of_code(self, code: str, gpus: tuple[int, ...]) -> str | None:
        """Return a sentence if the code asks for a GPU, in a session that was granted none of this machine's."""
        return self._how_to_get_one if not gpus and ASKS.search(code) else None

    @property
    def _how_to_get_one(self) -> str:
        if self._gpus.granted:
            return f"this session has no GPU; create a session with gpus={ALL!r}"
        return f"this session has no GPU; ask the operator to start the server with `--gpu {ALL}`"


def by_name(hints: GpuHints) -> dict[str, Hint]:
    return dict.fromkeys(NAMES, hints.find)
