// The editor for the next cell: CodeMirror, with completion and help from the live session where the server has them.
import { html, loadEditor, useEffect, useRef, useState } from "./lib.js";
import { attempt, post, sessionPath } from "./api.js";

const nonce = document.querySelector("script[nonce]")?.nonce || "";

/** Names that complete the word before the cursor, asked of the session. */
async function complete(session, context) {
  const word = context.matchBefore(/[\w.]*/);
  if (!context.explicit && (!word || word.from === word.to)) return null;
  const found = await post(sessionPath(session, "complete"), { code: context.state.doc.toString(), cursor: context.pos }).catch(() => null);
  if (!found?.matches?.length) return null;
  return {
    from: found.cursor_start ?? word.from,
    to: found.cursor_end ?? context.pos,
    options: found.matches.map((match) => ({ label: match.text, detail: match.type })),
    validFor: /^[\w]*$/,
  };
}

/** What the session knows about the name under the pointer. */
async function inspect(session, view, at) {
  const found = await post(sessionPath(session, "inspect"), { code: view.state.doc.toString(), cursor: at }).catch(() => null);
  if (!found?.found) return null;
  const text = [`${found.name}${found.signature || ""}`, found.type, found.doc || found.preview].filter(Boolean).join("\n");
  return { pos: at, above: true, create() {
    const dom = document.createElement("pre");
    dom.className = "help";
    dom.textContent = text.slice(0, 4000);
    return { dom };
  } };
}

function extensions(cm, timeline, run) {
  const session = timeline.id;
  return [
    cm.EditorView.cspNonce.of(nonce),
    cm.Prec.highest(cm.keymap.of([
      { key: "Shift-Enter", run }, { key: "Mod-Enter", run },
      { key: "Tab", run: (view) => cm.acceptCompletion(view) || (/[\w.]$/.test(view.state.sliceDoc(0, view.state.selection.main.head)) && cm.startCompletion(view)) },
    ])),
    cm.minimalSetup, cm.python(), cm.bracketMatching(), cm.indentOnInput(),
    cm.syntaxHighlighting(cm.classHighlighter),
    cm.autocompletion({ override: [(context) => complete(session, context)], activateOnTypingDelay: 250, interactionDelay: 0 }),
    cm.hoverTooltip((view, at) => inspect(session, view, at), { hoverTime: 500 }),
    cm.keymap.of([cm.indentWithTab]),
    cm.EditorView.lineWrapping,
    cm.EditorView.contentAttributes.of({ "aria-label": "Code of the next cell", "data-testid": "editor" }),
    cm.placeholder("Python — Shift+Enter runs it"),
  ];
}

export function Editor({ timeline }) {
  const place = useRef(null);
  const view = useRef(null);
  const [busy, setBusy] = useState(false);
  const state = timeline.state.value;
  const taken = state === "running" || state.startsWith("waiting");
  const run = () => {
    const code = view.current?.state.doc.toString() || "";
    if (!code.trim()) return true;
    setBusy(true);
    attempt(async () => {
      await post(sessionPath(timeline.id, "execute"), { code, wait: 0, queue: true });
      view.current.dispatch({ changes: { from: 0, to: view.current.state.doc.length, insert: "" } });
    }).finally(() => setBusy(false));
    return true;
  };
  useEffect(() => {
    let gone = false;
    loadEditor().then((cm) => {
      if (gone) return;
      view.current = new cm.EditorView({ parent: place.current, state: cm.EditorState.create({ extensions: extensions(cm, timeline, run) }) });
    });
    return () => { gone = true; view.current?.destroy(); };
  }, [timeline]);
  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); run(); }}>
    <div class="editor" ref=${place}></div>
    <button class="primary" disabled=${busy} title="Shift+Enter">${taken ? "Run next" : "Run"}</button>
  </form>`;
}
