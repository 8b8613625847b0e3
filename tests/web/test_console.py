"""The console, used as a person uses it."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from support.console import cell, open_session, start, write
from support.server import Server
from support.waiting import wait_until

pytestmark = pytest.mark.web

NARROW = {"width": 390, "height": 800}

SERIOUS = ("serious", "critical")


def state(server: Server, name: str) -> str:
    return str(server.client.get(f"/v1/sessions/{name}").json()["state"])


# Signing in


@pytest.mark.req("web.signin")
def test_a_person_signs_in_with_a_token_and_out(browser: Browser, server: Server) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.url + "/machine")
    page.get_by_label("Token").fill("nonsense")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid here")
    page.get_by_label("Token").fill(server.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Server")).to_be_visible()
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    context.close()


@pytest.mark.req("web.signin")
def test_a_reader_of_a_link_sees_one_session_and_no_action(browser: Browser, server: Server, name: str) -> None:
    server.execute("print('for all to see')", name)
    link = server.client.post("/v1/shares", json={"session_id": name}).json()["path"]
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.url + link)
    expect(cell(page, 1)).to_contain_text("for all to see")
    expect(page.get_by_text("read only")).to_be_visible()
    server.execute("print('and this')", name)
    expect(cell(page, 2)).to_contain_text("and this")
    for word in ("Run", "Interrupt", "Save", "Stop the session", "All sessions", "Files"):
        assert page.get_by_text(word, exact=True).count() == 0
    context.close()


# All sessions


@pytest.mark.req("web.live")
def test_the_list_shows_who_waits_and_takes_the_answer(page: Page, server: Server, name: str) -> None:
    page.goto(server.url + "/")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))
    expect(row).to_contain_text("idle")
    start(server, name, "answer = input('Which quarter? ')")
    expect(row).to_contain_text("waiting for you")
    expect(page).to_have_title(re.compile(r"^\(\d+\) waiting for you"))
    first = page.locator("tbody tr").first
    expect(first).to_contain_text("Which quarter?")
    row.get_by_label("Which quarter?").fill("Q3")
    row.get_by_role("button", name="Answer").click()
    expect(row).to_contain_text("idle")
    assert server.execute("answer", name)["result"]["text/plain"] == "'Q3'"


def test_the_list_says_why_a_process_ended(page: Page, server: Server, name: str) -> None:
    server.execute("import os; os._exit(3)", name)
    page.goto(server.url)
    row = page.get_by_role("row", name=name)
    expect(row).to_contain_text(re.compile("process ended.*ended with exit code 3 after cell 1"))


def test_an_address_without_a_session_leads_to_those_there_are(browser: Browser, server: Server) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.url + server.client.post("/v1/signin/codes", json={}).json()["path"])
    page.wait_for_url(server.url + "/")
    page.goto(server.url + "/sessions/nowhere")
    expect(page.get_by_role("status")).to_contain_text("there is no session 'nowhere'")
    expect(page.get_by_role("navigation", name="Views")).to_have_count(0)
    page.get_by_role("main").get_by_role("link", name="All sessions").click()
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    context.close()


def test_the_list_is_searched_and_sorted_by_keyboard(page: Page, server: Server, name: str) -> None:
    page.goto(server.url + "/")
    page.get_by_role("link", name=name, exact=True).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("no such session")
    expect(page.get_by_text("No session matches.")).to_be_visible()
    page.get_by_role("searchbox").fill(name)
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Memory").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("columnheader", name="Memory")).to_have_attribute("aria-sort", "ascending")
    page.get_by_role("link", name=name, exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()


def test_a_new_session_is_made_from_the_page(page: Page, server: Server) -> None:
    page.goto(server.url + "/")
    page.get_by_role("button", name="New session").click()
    page.get_by_label("Name").fill("made-here")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text("Nothing has run in this session yet.")).to_be_visible()
    expect(page.get_by_text("No variables yet.")).to_be_visible()
    server.client.delete("/v1/sessions/made-here").raise_for_status()
    expect(page.get_by_text("has ended")).to_be_visible()


# The transcript


@pytest.mark.req("web.live")
def test_the_transcript_shows_a_cell_as_it_runs_and_the_same_after_a_reload(
    page: Page, server: Server, name: str
) -> None:
    open_session(page, server, name)
    start(server, name, "import time\nprint('first')\nwhile 'go' not in globals(): time.sleep(0.01)")
    shown = cell(page, 1)
    expect(shown).to_contain_text("first")
    expect(shown).to_contain_text("running")
    expect(shown.locator(".author")).to_contain_text("httpx")
    page.reload()
    expect(cell(page, 1)).to_contain_text("first")
    page.get_by_role("button", name="Interrupt").click()
    expect(cell(page, 1)).to_contain_text("interrupted")
    expect(cell(page, 1)).to_contain_text("KeyboardInterrupt")
    page.reload()
    expect(cell(page, 1)).to_contain_text("interrupted")


@pytest.mark.req("web.live")
def test_plots_tables_markdown_progress_and_errors_are_shown(page: Page, server: Server, name: str) -> None:
    open_session(page, server, name)
    server.execute("import matplotlib.pyplot as plt\nplt.plot([1, 4, 2]); plt.show()", name)
    picture = cell(page, 1).get_by_role("img")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") > 100
    server.execute("import pandas as pd\npd.DataFrame({'apples': [3, 5]})", name)
    table = cell(page, 2).frame_locator("iframe").get_by_role("table")
    expect(table).to_contain_text("apples")
    server.execute("from IPython.display import Markdown\nMarkdown('# Title\\n\\n- *one*\\n- `two`')", name)
    expect(cell(page, 3).get_by_role("heading", name="Title")).to_be_visible()
    expect(cell(page, 3).get_by_role("listitem")).to_have_count(2)
    server.execute("for i in range(101): print(f'\\r{i} %', end='')", name)
    expect(cell(page, 4).locator("pre.text")).to_have_text("100 %")
    server.execute("def outer():\n    inner()\ndef inner():\n    raise ValueError('no such thing')\nouter()", name)
    failure = cell(page, 5).get_by_role("group", name="Error")
    expect(failure).to_contain_text("ValueError: no such thing")
    expect(failure).to_contain_text("line 4, in inner")
    expect(failure).not_to_contain_text("in outer")
    failure.get_by_role("button").click()
    expect(failure).to_contain_text("in outer")
    server.execute("import json\njson.loads('[')", name)
    failure = cell(page, 6).get_by_role("group", name="Error")
    expect(failure).to_contain_text("json.loads('[')")
    expect(failure).not_to_contain_text("decoder.py")


def test_input_and_passwords_are_answered_in_place(page: Page, server: Server, name: str) -> None:
    open_session(page, server, name)
    start(
        server,
        name,
        "import getpass\nname = input('Name: ')\nsize = len(getpass.getpass('Word: '))\nprint('hello', name)",
    )
    page.get_by_label("Name:").fill("Ada")
    # The prompt stands at the end of the output, and the field does not show it a second time.
    expect(page.locator(".answer .prompt")).to_have_count(0)
    page.get_by_role("button", name="Answer").click()
    secret = page.get_by_label("Word:")
    expect(secret).to_have_attribute("type", "password")
    secret.fill("s3cret")
    secret.press("Enter")
    expect(cell(page, 1)).to_contain_text("hello Ada")
    assert "s3cret" not in page.content()


def test_long_output_is_folded_and_its_middle_is_read_on_demand(page: Page, server: Server, name: str) -> None:
    server.execute("for i in range(50_000): print('row', i)", name)
    open_session(page, server, name)
    shown = cell(page, 1)
    expect(shown).to_contain_text("row 49999")
    shown.get_by_role("button", name=re.compile("folded")).click()
    lines = page.get_by_role("region", name="Lines of the output")
    expect(lines).to_contain_text("row 100")
    lines.get_by_role("button", name="Later").click()
    expect(lines).to_contain_text("row 600")


# Acting


def test_a_cell_is_written_completed_and_run(page: Page, server: Server, name: str) -> None:
    server.execute("prices_of_apples = [3, 5]", name)
    open_session(page, server, name)
    editor = page.get_by_role("textbox", name="Code of the next cell")
    editor.click()
    page.keyboard.type("sum(prices_of")
    page.keyboard.press("Control+Space")
    expect(page.get_by_role("option", name=re.compile("prices_of_apples"))).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.type(")")
    page.keyboard.press("Shift+Enter")
    expect(cell(page, 2)).to_contain_text("8")
    expect(cell(page, 2).locator(".author")).to_contain_text("console")
    expect(editor).not_to_contain_text("prices")


def test_a_copy_is_opened_and_the_original_stays(page: Page, server: Server, name: str) -> None:
    server.execute("x = 1", name)
    open_session(page, server, name)
    page.get_by_role("button", name="Open a copy").click()
    page.get_by_label("Name of the copy").fill(f"{name}-mine")
    page.get_by_role("button", name="Open the copy").click()
    expect(page.get_by_role("heading", name=f"{name}-mine")).to_be_visible()
    write(page, "x = 2; print('changed', x)")
    expect(page.get_by_role("article").last).to_contain_text("changed 2")
    assert server.execute("x", name)["result"]["text/plain"] == "1"
    # A page that is open would ask for what is gone.
    page.close()
    server.client.delete(f"/v1/sessions/{name}-mine")


def test_dangerous_actions_say_what_is_lost(page: Page, server: Server, name: str) -> None:
    server.execute("a = 1; b = 2", name)
    server.client.post(f"/v1/sessions/{name}/checkpoints", json={"name": "before"}).raise_for_status()
    server.execute("a = 100", name)
    open_session(page, server, name)
    page.get_by_role("button", name="Roll back").click()
    expect(page.get_by_role("dialog")).to_contain_text("what 1 cell did to variables")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Roll back")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    assert wait_until(lambda: server.execute("a", name)["result"]["text/plain"] == "1", 20)
    page.locator("summary", has_text="More").click()
    page.get_by_role("button", name="Clear variables").click()
    expect(page.get_by_role("note")).to_contain_text("variable")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.locator("summary", has_text="More")).to_be_focused()
    expect(page.get_by_role("button", name="Stop the session")).to_be_hidden()
    page.locator("summary", has_text="More").click()
    page.get_by_role("button", name="Stop the session").click()
    expect(page.get_by_role("note")).to_contain_text("the files of its own folder")
    page.get_by_role("dialog").get_by_role("button", name="Stop the session").click()
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    assert server.client.get(f"/v1/sessions/{name}").status_code == 404


def test_save_and_export(page: Page, server: Server, name: str) -> None:
    server.execute("kept = 41 + 1", name)
    open_session(page, server, name)
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("Saved 1 variable")
    page.locator("summary", has_text="More").click()
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as download:
        page.get_by_role("dialog").get_by_role("button", name="Export").click()
    assert download.value.suggested_filename == f"{name}.ipynb"
    assert "kept = 41 + 1" in download.value.path().read_text()
    server.client.delete(f"/v1/snapshots/{name}")


def test_a_link_is_made_on_the_page(page: Page, server: Server, name: str, browser: Browser) -> None:
    open_session(page, server, name)
    page.locator("summary", has_text="More").click()
    page.get_by_role("button", name="Share a link").click()
    page.get_by_role("button", name="Make a link").click()
    link = page.get_by_role("textbox", name="Link").input_value()
    context = browser.new_context()
    reader = context.new_page()
    reader.goto(link)
    expect(reader.get_by_role("heading", name=name)).to_be_visible()
    context.close()


def test_the_memory_that_a_cell_took_is_told(page: Page, server: Server, name: str) -> None:
    open_session(page, server, name)
    expect(page.get_by_text("Nothing has run")).to_be_visible()
    write(page, "big = bytearray(60_000_000)")
    expect(cell(page, 1).get_by_title("Change of memory")).to_have_text(re.compile(r"^\+[56]\d\.\d MB$"))
    # After a reload it is told by the samples around the cell.
    began = server.client.get(f"/v1/sessions/{name}/cells").json()["cells"][0]["started_at"]
    kept = [{"time": began + seconds, "cpus": 0, "memory": size} for seconds, size in ((-1, 10**7), (60, 8 * 10**7))]
    page.route("**/usage", lambda route: route.fulfill(json={"session_id": name, "samples": kept}))
    page.reload()
    expect(cell(page, 1).get_by_title("Change of memory")).to_have_text("+70.0 MB")


# The views beside it


def test_variables_show_what_the_last_cell_changed_and_their_values(page: Page, server: Server, name: str) -> None:
    server.execute("import numpy as np\nwave = np.sin(np.linspace(0, 6, 100)); n = 1", name)
    open_session(page, server, name, "variables")
    row = page.get_by_role("row").filter(has=page.get_by_role("button", name="n", exact=True))
    expect(row).to_contain_text("int")
    server.execute("n = 2", name)
    expect(row).to_contain_text("changed")
    page.get_by_role("button", name="wave", exact=True).click()
    expect(page.get_by_role("img", name=re.compile("Plot of wave, 100 values"))).to_be_visible()
    expect(page.get_by_role("region", name="Value of wave")).to_contain_text("1–50 of 100 rows")


def test_a_data_frame_is_read_by_page_and_a_column_plotted(page: Page, server: Server, name: str) -> None:
    code = "import pandas as pd\nsales = pd.DataFrame({'town': ['Bonn'] * 120, 'units': range(120)})"
    server.execute(code + "\nclass Odd:\n    def __repr__(self): return 'an odd one'\nodd = Odd()", name)
    open_session(page, server, name, "variables")
    page.get_by_role("button", name="sales", exact=True).click()
    rows = page.get_by_role("region", name="Rows")
    expect(rows.get_by_role("row")).to_have_count(51)
    page.get_by_role("button", name="Later rows").click()
    expect(rows.get_by_role("row").nth(1)).to_have_text("50Bonn50")
    page.get_by_role("button", name="Later rows").click()
    expect(page.get_by_text("101–120 of 120 rows")).to_be_visible()
    expect(page.get_by_role("button", name="Later rows")).to_be_disabled()
    rows.get_by_role("button", name="units").click()
    expect(page.get_by_role("img", name="Plot of units, 120 values")).to_be_visible()
    server.execute("sales = sales.head(3)", name)
    page.get_by_role("button", name="Earlier rows").click()
    page.get_by_role("button", name="Earlier rows").click()
    expect(page.get_by_text("1–3 of 3 rows")).to_be_visible()
    page.get_by_role("button", name="odd", exact=True).click()
    expect(page.get_by_role("region", name="Value of odd")).to_contain_text("an odd one")


def test_files_are_listed_shown_uploaded_and_downloaded(page: Page, server: Server, name: str) -> None:
    server.execute("open('notes.md', 'w').write('# Hello')\nimport os; os.mkdir('data')", name)
    open_session(page, server, name, "files")
    page.get_by_role("button", name="notes.md", exact=True).click()
    expect(page.get_by_role("region", name="Preview of notes.md")).to_contain_text("Hello")
    page.get_by_label("Files to upload").set_input_files({"name": "up.txt", "mimeType": "text/plain", "buffer": b"up"})
    page.get_by_role("button", name="up.txt", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.path().read_text() == "up"
    page.get_by_role("button", name="Remove up.txt").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_role("button", name="up.txt", exact=True)).to_have_count(0)
    page.get_by_role("button", name="data/").click()
    expect(page.get_by_text("The folder is empty.")).to_be_visible()


def test_checkpoints_are_made_compared_and_returned_to(page: Page, server: Server, name: str) -> None:
    server.execute("open('a.txt', 'w').write('one\\n'); v = 1", name)
    open_session(page, server, name, "branches")
    page.get_by_role("button", name="Make a checkpoint").click()
    page.get_by_role("dialog").get_by_label("Name").fill("safe")
    page.get_by_role("button", name="Make it").click()
    point = page.get_by_role("listitem").filter(has_text="safe")
    expect(point).to_be_visible()
    server.execute("open('a.txt', 'w').write('two\\n'); v = 2", name)
    point.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("region", name="Differences")).to_contain_text("a.txt")
    expect(page.get_by_role("region", name="Differences").get_by_role("row", name=re.compile("v"))).to_contain_text(
        "int"
    )
    point.get_by_role("button", name="Go back").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    assert wait_until(lambda: server.execute("v", name)["result"]["text/plain"] == "1", 20)


def test_resources_network_and_shell(page: Page, server: Server, name: str) -> None:
    server.execute("x = bytearray(30_000_000)", name)
    open_session(page, server, name, "resources")
    expect(page.get_by_role("img", name=re.compile("Memory over"))).to_be_visible()
    expect(page.get_by_role("complementary")).to_contain_text(re.compile("Processes 1ingle-session.*B in its folder"))
    page.get_by_role("link", name="Network").click()
    expect(page.get_by_text("Network access:")).to_be_visible()
    page.get_by_role("link", name="Shell").click()
    page.get_by_label("Command").fill("echo from the shell; read line; echo got $line")
    page.get_by_role("button", name="Run", exact=True).last.click()
    task = page.get_by_role("region", name="Task")
    expect(task).to_contain_text("from the shell")
    task.get_by_label("Input").fill("word")
    task.get_by_role("button", name="Send").click()
    expect(task).to_contain_text("got word")


def test_a_terminal_is_loaded_when_it_is_opened_and_used(page: Page, server: Server, name: str) -> None:
    loaded: list[str] = []
    page.on("request", lambda request: loaded.append(request.url))
    open_session(page, server, name, "shell")
    page.get_by_role("button", name="Open a terminal").wait_for()
    assert not [each for each in loaded if "xterm" in each]
    page.get_by_role("button", name="Open a terminal").click()
    screen = page.locator(".terminal-box").locator(".xterm-rows")
    screen.wait_for()
    page.keyboard.type("echo six times seven is $((6 * 7)), $COLUMNS wide; stty size\n")
    expect(screen).to_contain_text(re.compile(r"six times seven is 42"))
    expect(screen).not_to_contain_text("24 80")
    page.keyboard.type("exit 3\n")
    expect(page.get_by_role("region", name="Task")).to_contain_text("exit code 3")
    assert [each for each in loaded if "xterm" in each]


def test_the_server_has_a_page_with_tokens(page: Page, server: Server) -> None:
    page.goto(server.url + "/machine")
    page.get_by_role("button", name="New token").click()
    page.get_by_role("dialog").get_by_label("Name", exact=True).fill("visitor")
    page.get_by_role("button", name="Create").click()
    token = page.get_by_role("textbox", name="Token").input_value()
    assert token.startswith("ingle_")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("row").filter(has_text="visitor").get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("row").filter(has_text="visitor")).to_have_count(0)


# Looking back


@pytest.mark.req("web.flood")
def test_a_flood_of_output_does_not_freeze_the_page(page: Page, server: Server, name: str) -> None:
    open_session(page, server, name)
    start(server, name, "line = 'x' * 99\nfor i in range(600_000): print(line)\nprint('the', 'end')")
    expect(cell(page, 1)).to_contain_text("prints very much")
    page.get_by_role("link", name="Files").click()
    expect(page.get_by_text("The folder is empty.")).to_be_visible()
    expect(cell(page, 1)).to_contain_text("the end", timeout=60_000)
    assert len(page.content()) < 1_000_000
    write(page, "print('still alive')")
    expect(cell(page, 2)).to_contain_text("still alive")


# For everybody


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(context: BrowserContext, server: Server, name: str, scheme: str) -> None:
    server.execute("import os\nx = [1, 2]\nprint('\\x1b[31mred\\x1b[0m')\n1 / 0", name)
    start(server, name, "input('Who? ')")
    page = context.new_page()
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    axe = Axe()
    for path in ("/", f"/sessions/{name}", f"/sessions/{name}/files", f"/sessions/{name}/branches", "/machine"):
        page.goto(server.url + path)
        page.wait_for_selector("main h1")
        page.wait_for_load_state("networkidle")
        found = axe.run(page, options={"iframes": False}).response["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in SERIOUS] == [], path


def test_a_phone_shows_one_view_at_a_time(page: Page, server: Server, name: str) -> None:
    server.execute("x = 1", name)
    page.set_viewport_size(NARROW)  # type: ignore[arg-type]
    page.goto(server.url + "/")
    page.get_by_role("link", name=name, exact=True).click()
    expect(cell(page, 1)).to_be_visible()
    page.get_by_role("link", name="Variables").click()
    expect(cell(page, 1)).to_be_hidden()
    expect(page.get_by_role("button", name="x", exact=True)).to_be_visible()
    for path in ("/", f"/sessions/{name}", f"/sessions/{name}/files", "/machine"):
        page.goto(server.url + path)
        page.wait_for_selector("main h1")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


def test_watchers_see_each_others_cells(context: BrowserContext, server: Server, name: str) -> None:
    one, two = context.new_page(), context.new_page()
    open_session(one, server, name)
    open_session(two, server, name)
    write(one, "print('from one')")
    expect(cell(two, 1)).to_contain_text("from one")
    start(server, name, "input('hold')")
    expect(two.get_by_role("button", name="Run next")).to_be_visible()
    write(two, "print('later')")
    one.get_by_role("button", name="Answer").click()
    expect(cell(one, 3)).to_contain_text("later")
