// Python of cells, highlighted by the parser of the editor. Until that has loaded, and for long cells, plain text.
import { html, loadEditor, useEffect, useMemo, useState } from "./lib.js";

const MAX_CHARS = 20_000;
const FOLD_LINES = 24;

let library = null;

function spans(code) {
  const out = [];
  library.highlightCode(code, library.pythonLanguage.parser.parse(code), library.classHighlighter,
    (text, classes) => out.push(classes ? html`<span class=${classes}>${text}</span>` : text),
    () => out.push("\n"));
  return out;
}

export function Code({ code }) {
  const [, setLoaded] = useState(!!library);
  const [open, setOpen] = useState(false);
  useEffect(() => { if (!library) loadEditor().then((found) => { library = found; setLoaded(true); }); }, []);
  const rows = code.split("\n");
  const folded = !open && rows.length > FOLD_LINES + 5;
  const text = folded ? rows.slice(0, FOLD_LINES).join("\n") : code;
  // A cell is drawn with each piece of its output, and its code stays the same.
  const shown = useMemo(() => (library && text.length <= MAX_CHARS ? spans(text) : text), [text, library]);
  return html`<pre class="code">${shown}</pre>
    ${(folded || open) && html`<button class="quiet" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      ${open ? "Fold the code" : `Show ${rows.length - FOLD_LINES} more lines`}</button>`}`;
}
