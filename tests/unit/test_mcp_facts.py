"""The instructions that a model gets, from the facts of its server."""

import pytest

from ingle.grants import GrantInfo, Reach
from ingle.mcp.facts import INSTRUCTIONS_CHARS, Facts, instructions
from ingle.mcp.tools import CORE

OUT_OF_REACH = "Other files of the user are out of reach, also for shell commands; the user can grant a folder"


def folder(name: str, *, read_only: bool = False) -> GrantInfo:
    return GrantInfo(name, "folder", name, read_only)


@pytest.mark.parametrize(
    ("facts", "said", "unsaid"),
    [
        (
            Facts("/project", True, reach=Reach("sandbox", "allowlist", [folder("/project")], ["index"])),
            [
                "Sessions start in /project. Its files can be read and written. " + OUT_OF_REACH,
                "Of the network, code reaches the package index only. A missing package is installed",
                "`main` is saved after each cell and comes back",
            ],
            ["Sessions end with the server"],
        ),
        (
            Facts(reach=Reach("sandbox", "none", [folder("/data", read_only=True)])),
            [
                "Sessions start in an empty folder of their own.",
                "These folders can be used too: /data (read only). Other",
                "Code has no network. Packages cannot be downloaded",
                "Sessions end with the server, unless they are created with durable=true.",
            ],
            ["%pip", "Its files can be"],
        ),
        (
            Facts(reach=Reach("sandbox", "allowlist", [], ["api.example.org"])),
            ["Of the network, code reaches api.example.org only. Packages cannot be downloaded"],
            ["package index"],
        ),
        (
            Facts("/project", can_be_durable=False, reach=Reach("none", "full")),
            [
                "Sessions start in /project. Code may use every file that the user who started this server may use.",
                "Code can use the network. A missing package",
                "Sessions end with the server. If",
            ],
            ["out of reach", "durable"],
        ),
        (
            Facts(environments=("data", "ml"), owns=False, reach=Reach("sandbox", "none")),
            [
                "Other files of the server's machine are out of reach, also for shell commands; its operator grants",
                "Environments with other packages, for create_repl_session(environment=…): data, ml.",
            ],
            ["ingle grant"],
        ),
        (
            Facts(durable=True, environments=("data",), tools=frozenset(CORE)),
            [
                "means that the code continues: call wait, or interrupt.",
                "Long output is shortened, and read_output reads the rest.",
                "To keep work apart from the variables of `main`, use python for a single run.",
            ],
            ["create_repl_session", "durable=true"],
        ),
        (
            Facts(tools=frozenset({"python_session"})),
            ["the code continues. `waiting", "asks for something. Long output is shortened.", "Sessions end with the"],
            ["call wait", "send_input", "read_output", "apart", "durable"],
        ),
        (
            Facts("/project", ends_idle_after=300.0),
            ["A session that is idle for 5 min 0 s ends."],
            ["network", "out of reach", "Sessions start", "%pip"],
        ),
    ],
)
def test_the_instructions_say_what_is_so_and_nothing_else(facts: Facts, said: list[str], unsaid: list[str]) -> None:
    text = instructions(facts)
    for each in said:
        assert each in text
    for each in unsaid:
        assert each not in text
    assert len(text) < INSTRUCTIONS_CHARS
