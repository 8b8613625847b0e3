// Variables of a session: type, extent, size and preview, and what the last cell changed.
import { html, useEffect, useRef, useState } from "./lib.js";
import { get, load, mayAct, sessionPath } from "./api.js";
import { plain } from "./ansi.js";
import { bytes, count, plural } from "./format.js";
import { Value } from "./value.js";

const extent = (variable) => (variable.shape ? variable.shape.join(" × ") : variable.length !== undefined ? count(variable.length) : "");
const print = (variable) => JSON.stringify([variable.type, variable.shape, variable.length, variable.size, variable.preview]);

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
    load(() => get(sessionPath(timeline.id, "variables"))).then((answer) => {
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
