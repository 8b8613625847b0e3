"""Copies and saves of sessions that use a GPU, with a fake driver that refuses forked processes."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingle import errors
from ingle.requests import SessionLimits
from ingle.service import Service
from ingle.sessions import descriptors
from support.fake_gpus import give_torch, make_cards
from support.internals import session_of
from support.service import make_settings
from support.waiting import until

pytestmark = [pytest.mark.req("gpu.copies")]

BY_VALUE = "copied by value, since the session uses a GPU"

BEGIN = """
import torch, threading
x = torch.tensor([1, 2, 3, 4], device="cuda:0")
tail = x.view_from(2)
weight = torch.nn.Parameter(torch.tensor([5, 6], device="cuda:0"))
weight.grad = torch.tensor([7, 8], device="cuda:0")
pinned = torch.tensor([9, 10]).pin_memory()
plain = {"answer": 42}
drawn = torch.Generator("cuda:0")
drawn.set_state(torch.frombuffer(bytearray(b"state of a card."), dtype=torch.uint8))
torch.cuda.set_rng_state(torch.frombuffer(bytearray(b"01234567"), dtype=torch.uint8), "cuda:0")
stream = torch.cuda.Stream()
"""

CHECK = """
tail.fill_(0)
print(x.tolist(), str(x.device), weight.tolist(), weight.grad.tolist(), weight.requires_grad, type(weight).__name__)
print(pinned.tolist(), plain, drawn.get_state().numpy().tobytes(), torch.get_rng_state("cuda:0").numpy().tobytes())
"""

CHECKED = """\
[1.0, 2.0, 0.0, 0.0] cuda:0 [5.0, 6.0] [7.0, 8.0] True Parameter
[9.0, 10.0] {'answer': 42} b'state of a card.' b'01234567'
"""


@pytest.fixture(params=["none", "sandbox"])
async def service(
    request: pytest.FixtureRequest, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Service]:
    make_cards(tmp_path, monkeypatch)
    settings = make_settings(preload=[], pool=0, isolation=request.param, gpu="all", network="none", mount=[])
    made = Service.local(settings, home)
    try:
        await made.start()
    except errors.IsolationUnavailable as error:
        pytest.skip(str(error))
    try:
        yield made
    finally:
        await made.stop()


async def run(service: Service, session: str, code: str) -> str:
    result = await service.execute(session, code)
    assert (result.status, result.error) == ("ok", None), result
    return result.stdout


async def begin(service: Service, session: str, code: str = BEGIN, **wanted: object) -> None:
    await service.create_session(session, **wanted)  # type: ignore[arg-type]
    await give_torch(service, session)
    await run(service, session, code)


async def test_a_fork_has_the_data_on_the_card_again_and_names_what_it_lacks(service: Service) -> None:
    await begin(service, "s")
    made = await service.fork_session("s", "copy", count=2)
    assert [each.copied for each in made] == ["value", "value"]
    assert [any(each.startswith(BY_VALUE) for each in info.notices) for info in made] == [True, True]
    assert all(any("not copied: stream (" in each for each in info.notices) for info in made)
    assert made[0].variables == ["drawn", "pinned", "plain", "tail", "threading", "torch", "weight", "x"]
    for name in ("copy-1", "copy-2", "s"):
        assert await run(service, name, CHECK) == CHECKED
    # The copy has a driver of its own: it can be copied, and goes back to a checkpoint of itself.
    await run(service, "copy-1", "x.fill_(3)")
    assert (await service.checkpoint("copy-1", "third")).copied == "value"
    await run(service, "copy-1", "x.fill_(4); open('left', 'w').close()")
    await service.rollback("copy-1", "third")
    assert await run(service, "copy-1", "import os; print(x.tolist(), os.path.exists('left'))") == (
        "[3.0, 3.0, 3.0, 3.0] False\n"
    )
    (again,) = await service.fork_session("copy-1", "again")
    assert again.copied == "value"
    assert await run(service, "again", "print(tail.tolist(), weight.tolist())") == "[3.0, 3.0] [5.0, 6.0]\n"


async def test_a_session_without_a_context_is_copied_as_before(service: Service) -> None:
    await service.create_session("s")
    await run(service, "s", "lines = iter([1, 2, 3]); next(lines); f = open('f', 'w+'); f.write('ab')")
    (made,) = await service.fork_session("s", "copy")
    assert (made.copied, [each for each in made.notices if "value" in each]) == ("process", [])
    assert await run(service, "copy", "print(next(lines), f.tell())") == "2 2\n"
    assert (await service.get_session("s")).copied is None


async def test_a_checkpoint_keeps_the_data_and_says_what_it_lacks(service: Service) -> None:
    await begin(service, "s")
    made = await service.checkpoint("s", "base")
    assert made.copied == "value"
    assert made.notices[0].startswith(BY_VALUE)
    assert [each for each in made.notices if "not copied: stream (" in each] != []
    for _ in range(2):
        await run(service, "s", "x.fill_(9); weight.fill_(9); del plain; more = 1")
        back = await service.rollback("s", "base")
        assert back.checkpoint.copied == "value"
        assert back.session.variables == ["drawn", "pinned", "plain", "tail", "threading", "torch", "weight", "x"]
        assert await run(service, "s", CHECK) == CHECKED


async def test_a_trial_has_the_data_and_becomes_the_session(service: Service) -> None:
    await begin(service, "s")
    tried = await service.trial("s", "x.fill_(8); print(x.tolist())", network="allowed")
    assert tried.stdout == "[8.0, 8.0, 8.0, 8.0]\n"
    assert tried.trial is not None
    assert tried.trial.copied == "value"
    await service.discard("s", tried.trial.name)
    assert await run(service, "s", "print(x.tolist())") == "[1.0, 2.0, 3.0, 4.0]\n"
    tried = await service.trial("s", "x.fill_(8)", network="allowed")
    assert tried.trial is not None
    await service.commit("s", tried.trial.name)
    assert await run(service, "s", "print(tail.tolist())") == "[8.0, 8.0]\n"
    assert (await service.checkpoint("s", "after")).copied == "value"
    await run(service, "s", "x.fill_(1)")
    await service.rollback("s", "after")
    assert await run(service, "s", "print(tail.tolist())") == "[8.0, 8.0]\n"


async def test_a_save_keeps_the_data_and_loads_it_where_there_is_no_card(service: Service) -> None:
    await begin(service, "s")
    saved = await service.save_session("s", "kept")
    assert [each.name for each in saved.skipped] == ["stream"]
    restored = await service.load_session("kept", "again")
    assert [each for each in restored.notices if "cuda" in each] == []
    assert await run(service, "again", CHECK) == CHECKED
    await service.end_session("again")
    await run(service, "s", "import os; os.environ['CARDS'] = '0'")
    await service.save_session("s", "without")
    restored = await service.load_session("without", "cpu")
    assert [each for each in restored.notices if each.startswith("what was on cuda:0 is on cpu now")] != []
    assert await run(service, "cpu", "print(x.tolist(), str(x.device))") == "[1.0, 2.0, 3.0, 4.0] cpu\n"


async def test_no_copy_is_made_that_would_not_fit(service: Service) -> None:
    await begin(service, "s", "import os\nos.environ['CARD_BYTES'] = '100'\n" + BEGIN)
    await run(service, "s", "os.environ['CARD_BYTES'] = '10'")
    with pytest.raises(errors.StartFailed, match=r"its copy does not fit: .* out of memory"):
        await service.fork_session("s", "copy")
    assert [each.session_id for each in await service.list_sessions()] == ["s"]
    await run(service, "s", "os.environ['CARD_BYTES'] = '1000000'")


async def test_a_copy_of_a_broken_context_has_all_that_is_not_on_the_card(service: Service) -> None:
    await begin(service, "s")
    await service.checkpoint("s", "before")
    result = await service.execute("s", "torch.driver.poisoned = True; x.fill_(1)")
    assert [each for each in result.notices if each.startswith("the CUDA context of this session is broken")] != []
    (made,) = await service.fork_session("s", "copy")
    named = [each for each in made.notices if "cannot be read from there: CUDA error: an illegal" in each]
    assert sorted(each.split()[2] for each in named) == ["drawn", "tail", "weight", "x"]
    assert await run(service, "copy", "print(plain, pinned.tolist(), torch.tensor([1], device='cuda:0').tolist())") == (
        "{'answer': 42} [9.0, 10.0] [1.0]\n"
    )
    await service.rollback("s", "before")
    assert await run(service, "s", CHECK) == CHECKED


async def test_automatic_checkpoints_stop_and_say_so(service: Service) -> None:
    await service.create_session("s", checkpoints="auto")
    await give_torch(service, "s")
    await run(service, "s", "import torch; y = 1")
    await run(service, "s", "y = 2")
    assert (await service.rollback("s")).checkpoint.copied == "process"
    assert await run(service, "s", "print(torch.cuda.is_available(), y)") == "True 1\n"
    await run(service, "s", "y = 3")
    told = (await service.get_session("s")).notices
    assert [each for each in told if each.startswith("automatic checkpoints have stopped")] != []
    with pytest.raises(errors.CheckpointNotFound, match="while the session uses a GPU"):
        await service.rollback("s")


@pytest.mark.req("gpu.freed")
async def test_hibernation_ends_every_process_that_could_hold_the_card(service: Service) -> None:
    await begin(service, "s", BEGIN.replace("stream =", "#"), idle_timeout=0.2)
    siblings = session_of(service, "s").worker.siblings  # type: ignore[union-attr]
    held = session_of(service, "s")
    await held.saves.hibernate()
    assert (await service.get_session("s")).state == "hibernated"
    assert await until(lambda: not siblings.members, 10)
    assert await run(service, "s", CHECK) == CHECKED


async def test_an_open_file_of_the_driver_counts_as_a_context(service: Service) -> None:
    if (await service.create_session("s")).isolation != "sandbox":
        pytest.skip("elsewhere the fake device nodes have other paths")
    await run(service, "s", "held = open('/dev/nvidiactl'); rows = [1]")
    (made,) = await service.fork_session("s", "copy")
    assert made.copied == "value"
    await service.checkpoint("s", "base")
    # A parked copy must not keep the driver's files: the card's memory would stay in use.
    parked = session_of(service, "s").checkpoints.workers[0].pid
    names = [os.readlink(f"/proc/{parked}/fd/{name}") for name in os.listdir(f"/proc/{parked}/fd")]
    assert [each for each in names if "nvidia" in each] == []
    assert await run(service, "copy", "print(rows)") == "[1]\n"


async def test_a_copy_that_needs_more_memory_than_is_left_is_refused(service: Service) -> None:
    made = await service.create_session("s", limits=SessionLimits(memory=400 * 1024**2))
    if made.isolation != "sandbox":
        pytest.skip("nothing limits the session")
    await give_torch(service, "s")
    await run(service, "s", "import torch; big = torch.empty(60_000_000, device='cuda:0')")
    for attempt in (service.fork_session("s", "copy"), service.checkpoint("s", "base")):
        with pytest.raises(errors.StartFailed, match=r"its GPU data needs 240 MB of memory, and .* are left"):
            await attempt
    assert await run(service, "s", "print(big.numel())") == "60000000\n"


OF_OTHERS = """
import threading, torch, types
torch.cuda.init()
class Array:
    \"\"\"As an array of JAX: its values come from the driver, which never answers a forked process.\"\"\"
    __cuda_array_interface__ = property(lambda self: threading.Event().wait())
    def __init__(self, platform):
        self.platform = platform
    def devices(self):
        return [types.SimpleNamespace(platform=self.platform)]
    def __reduce__(self):
        if self.platform != "cpu":
            threading.Event().wait()
        return Array, (self.platform,)
on_card, in_memory = Array("gpu"), Array("cpu")
"""


async def test_arrays_of_other_libraries_are_named_and_never_asked(service: Service) -> None:
    await begin(service, "s", OF_OTHERS)
    (made,) = await service.fork_session("s", "copy")
    assert [each for each in made.notices if "not copied: on_card (" in each and "it is on a GPU" in each] != []
    assert [each.name for each in (await service.save_session("s", "kept")).skipped] == ["on_card"]
    assert await run(service, "copy", "print(in_memory.platform)") == "cpu\n"


async def test_a_one_off_makes_no_process_for_copies_of_it(service: Service) -> None:
    count = "import os; me = os.getppid(); print(len(open(f'/proc/{me}/task/{me}/children').read().split()))"
    await service.create_session("s")
    assert await run(service, "s", count) == "2\n"
    assert (await service.execute_once(count)).stdout == "1\n"


@pytest.mark.req("scale.idle")
async def test_an_idle_session_takes_one_descriptor_more_for_its_copies(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "LEND_AFTER_SECONDS", 0.0)
    await begin(service, "first")
    first = session_of(service, "first").worker
    assert first is not None
    assert first.blank is not None
    assert await until(lambda: first.lent and first.blank.lent)
    before = len(os.listdir("/proc/self/fd"))
    names = [f"s{number}" for number in range(4)]
    for name in names:
        await service.create_session(name)
        await run(service, name, "rows = [1]")
    assert await until(lambda: len(os.listdir("/proc/self/fd")) <= before + 2 * len(names))
    # A copy by value begins in a process whose descriptors come back first.
    (made,) = await service.fork_session("first", "copy")
    assert made.copied == "value"
    assert await run(service, "copy", CHECK) == CHECKED
