"""Soft limit of a session's memory on GPUs: torch refuses more, with its usual error. Code can lift it."""

import os
from typing import Any

from ingle_worker.wire.child_variables import GPU_MEMORY


def watch(watcher: Any) -> None:
    """Set the limit when torch initialises the driver. That is later than its import, which may be in the zygote."""
    watcher.call_after("torch.cuda", lambda cuda: cuda._lazy_call(lambda: apply(cuda)))


def apply(cuda: Any) -> None:
    """Set the limit of this session on each GPU, if it has one."""
    limit = int(os.environ.get(GPU_MEMORY) or 0)
    if limit:
        for number in range(cuda.device_count()):
            total = cuda.get_device_properties(number).total_memory
            cuda.set_per_process_memory_fraction(min(1.0, limit / total), number)
