// Variables of a session: type, extent, size and preview, and what the last cell changed.
import { html, useEffect, useRef, useState } from "./lib.js";
import { attempt, ask, get, mayAct, sessionPath } from "./api.js";
import { plain } from "./ansi.js";
import { Chart } from "./chart.js";
import { bytes, plural } from "./format.js";
import { readNumbers } from "./npy.js";

const MAX_POINTS = 2000;
const VALUE_CHARS = 20_000;

const extent = (variable) => (variable.shape ? variable.shape.join(" × ") : variable.length !== undefined ? String(variable.length) : "");
const print = (variable) => JSON.stringify([variable.type, variable.shape, variable.length, variable.size, variable.preview]);

/** One variable in full: its text, and a plot where it is a row of numbers. */
function Value({ timeline, name, close }) {
  const [found, setFound] = useState(null);
  const [numbers, setNumbers] = useState(null);
  useEffect(() => {
    let gone = false;
    setFound(null); setNumbers(null);
    attempt(() => get(sessionPath(timeline.id, "variables", name))).then(async (answer) => {
      if (gone || !answer) return;
      setFound(answer);
      const { type, shape, length } = answer.variable;
      if ((shape && shape.length > 1) || !/array|list|tuple|range/i.test(type || "") || !(shape?.[0] ?? length)) return;
      const value = await ask("GET", sessionPath(timeline.id, "variables", name, "value"), undefined, { raw: true }).catch(() => null);
      const row = value && await readNumbers(value);
      if (row && !gone) setNumbers(row);
    });
    return () => { gone = true; };
  }, [name, timeline.finished.value]);
  const variable = found?.variable;
  const text = variable ? plain(variable.repr ?? variable.value ?? variable.preview ?? "") : "";
  return html`<section class="value" aria-label=${`Value of ${name}`}>
    <header><h3>${name}</h3><span class="muted">${variable?.type}</span><span class="spacer"></span><button class="quiet" onClick=${close}>Close</button></header>
    ${!found && html`<p class="muted">Loading…</p>`}
    ${numbers && html`<${Chart} series=${[{ name, values: thinned(numbers) }]} height=${110} label=${`Plot of ${name}, ${plural(numbers.length, "value")}`} />`}
    ${found && html`<pre class="text">${text.slice(0, VALUE_CHARS)}${text.length > VALUE_CHARS ? `\n… ${plural(text.length - VALUE_CHARS, "more character")}` : ""}</pre>`}
    ${found?.notices.map((notice) => html`<p class="notice">${plain(notice)}</p>`)}
  </section>`;
}

function thinned(numbers) {
  if (numbers.length <= MAX_POINTS) return Array.from(numbers);
  return Array.from({ length: MAX_POINTS }, (_, at) => numbers[Math.floor(at * numbers.length / MAX_POINTS)]);
}

export function Variables({ timeline }) {
  const [found, setFound] = useState(null);
  const [search, setSearch] = useState("");
  const [chosen, setChosen] = useState(null);
  const before = useRef(null);
  const [marks, setMarks] = useState({ changed: new Set(), gone: [] });
  const finished = timeline.finished.value, ended = timeline.ended.value;
  const asleep = timeline.info.value?.state === "hibernated" && !finished;
  useEffect(() => {
    if (ended || asleep || !timeline.info.value) return;
    let gone = false;
    attempt(() => get(sessionPath(timeline.id, "variables"))).then((answer) => {
      if (gone || !answer) return;
      const prints = new Map(answer.variables.map((variable) => [variable.name, print(variable)]));
      // While a cell runs only the names are known, and nothing can be compared.
      if (answer.variables.every((variable) => variable.type)) {
        const old = before.current;
        if (old) setMarks({
          changed: new Set([...prints].filter(([name, text]) => old.get(name) !== text).map(([name]) => name)),
          gone: [...old.keys()].filter((name) => !prints.has(name)),
        });
        before.current = prints;
      }
      setFound(answer);
    });
    return () => { gone = true; };
  }, [timeline, finished, ended, asleep, timeline.info.value]);
  if (asleep) return html`<p class="empty">The session is hibernated. The next cell brings its variables back.</p>`;
  const rows = (found?.variables || []).filter((variable) => variable.name.toLowerCase().includes(search.toLowerCase()));
  return html`<div class="variables">
    <div class="toolbar"><input type="search" placeholder="Search" aria-label="Search variables" value=${search} onInput=${(event) => setSearch(event.target.value)} />
      <span class="muted">${found ? plural(rows.length, "variable") : ""}</span></div>
    ${chosen && html`<${Value} timeline=${timeline} name=${chosen} close=${() => setChosen(null)} />`}
    ${marks.gone.length > 0 && html`<p class="effects">Gone with the last cell: ${marks.gone.slice(0, 10).map((name) => html`<span>− ${name}</span>`)}</p>`}
    <table class="rows"><thead><tr><th scope="col">Name</th><th scope="col">Type</th><th scope="col" class="number">Size</th><th scope="col">Value</th></tr></thead>
      <tbody>${rows.map((variable) => html`<tr key=${variable.name} class=${marks.changed.has(variable.name) ? "changed" : ""}>
        <th scope="row">${mayAct() && !ended ? html`<button class="link" onClick=${() => setChosen(variable.name)}>${variable.name}</button>` : variable.name}
          ${marks.changed.has(variable.name) && html`<span class="tag" title="The last cell changed it">changed</span>`}</th>
        <td class="type">${variable.type || ""}${extent(variable) && html` <span class="muted">${extent(variable)}</span>`}</td>
        <td class="number">${bytes(variable.size)}</td>
        <td class="preview"><code>${plain(variable.preview || "")}</code></td></tr>`)}</tbody></table>
    ${found && !found.variables.length && html`<p class="empty">No variables yet.</p>`}
    ${found?.more > 0 && html`<p class="muted">${plural(found.more, "more variable")} did not fit.</p>`}
  </div>`;
}
