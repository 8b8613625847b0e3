"""smolagents runs the code of an agent through E2B's SDK."""

from __future__ import annotations

import pytest
from serving import Server
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import E2BExecutor
from smolagents.utils import AgentError

pytestmark = pytest.mark.req("compat.sandboxes")


def test_an_agents_code_runs_keeps_its_state_and_ends(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_API_KEY", server.token)
    monkeypatch.setenv("E2B_API_URL", server.url)
    monkeypatch.setenv("E2B_SANDBOX_URL", server.url)
    executor = E2BExecutor([], AgentLogger(level=LogLevel.OFF))
    try:
        executor.send_variables({"given": [1, 2, 3]})
        output = executor("total = sum(given)\nprint('adding')\ntotal")
        assert (output.output, output.logs, output.is_final_answer) == ("6", "adding\n", False)
        assert executor("total + 1").output == "7"
        with pytest.raises(AgentError, match="ZeroDivisionError"):
            executor("1 / 0")
    finally:
        executor.cleanup()
