"""Three minutes of one cell over MCP: every answer within its budget, every line once, a sign of life in between."""

import time
from pathlib import Path

import pytest

from support.mcp_host import Host, text_of

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("mark")]

CODE = "import time\nfor i in range(360): print('tick', i); time.sleep(0.5)\nprint('the end')"


@pytest.mark.req("mcp.patient")
def test_a_cell_of_three_minutes_is_followed_with_the_default_budgets(home: Path) -> None:
    with Host(home) as host:
        host.initialize()
        seen, from_event, calls = "", 0, 0
        given = {"code": CODE}
        tool = "python_session"
        while True:
            began = time.monotonic()
            params = {"name": tool, "arguments": given, "_meta": {"progressToken": f"call-{calls}"}}
            number = host.begin("tools/call", params)
            result = host.answer(number, within=60)["result"]
            assert time.monotonic() - began <= 50
            calls += 1
            data = result["_meta"]["ingle/result"]
            seen += data["stdout"]
            from_event = data["next_event"]
            if data["status"] != "running":
                break
            assert "running" in text_of(result)
            tool, given = "wait", {"from_event": from_event}
        assert calls >= 4
        assert seen == "".join(f"tick {i}\n" for i in range(360)) + "the end\n"
        assert len(host.notifications) >= 180 // 5
        assert all(each["params"]["message"].startswith("tick ") for each in host.notifications)
