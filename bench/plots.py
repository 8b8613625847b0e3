"""A simple line plot in both, in turns: drawing takes long enough that a busy minute would decide it otherwise."""

import time

from bench import jupyter, ours

PLOT = (
    "import matplotlib.pyplot as plt\n"
    "plt.plot([n * n for n in range(100)], label='n')\nplt.title('squares')\nplt.legend();"
)


async def in_turns(preload: list[str], count: int) -> tuple[list[float], list[float]]:
    """Seconds of each plot: ingle's, and those of ipykernel's inline backend."""
    mine, theirs = [], []
    async with ours.engine(preload, 2) as service, jupyter.kernel() as kernel:
        await service.create_session("plots")
        await kernel.execute(f"import {', '.join(preload)}\n%matplotlib inline")
        for round in range(count + 3):
            began = time.perf_counter()
            result = await service.execute("plots", PLOT)
            between = time.perf_counter()
            await kernel.execute(PLOT)
            ended = time.perf_counter()
            assert [sorted(each) for each in result.displays] == [["image/png", "text/plain"]]
            if round >= 3:  # the first ones load fonts
                mine.append(between - began)
                theirs.append(ended - between)
    return mine, theirs
