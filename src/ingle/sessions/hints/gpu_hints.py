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


class GpuHints:
    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus

    async def find(self, failure: Failure) -> str | None:
        """Return a sentence about GPUs, if the exception says that there is none and the session was granted none."""
        if failure.gpus or WITHOUT_CARD.search(failure.value[:MAX_TEXT_CHARS]) is None:
            return None
        if not self._gpus.found:
            return "this machine has no GPU that ingle knows; `ingle doctor` tells what it looked for"
        if self._gpus.granted:
            return f"this session has no GPU; create a session with gpus={ALL!r}"
        return f"this session has no GPU; ask the operator to start the server with `--gpu {ALL}`"


def by_name(gpus: Gpus) -> dict[str, Hint]:
    return dict.fromkeys(NAMES, GpuHints(gpus).find)
