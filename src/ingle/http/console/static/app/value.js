// One variable in full: a page of its rows with a plot of its numbers, or its text.
import { html, useEffect, useState } from "./lib.js";
import { get, load, query, sessionPath } from "./api.js";
import { plain } from "./ansi.js";
import { Chart } from "./chart.js";
import { plural } from "./format.js";

const VALUE_CHARS = 20_000;
const ROWS = 50;

const NUMBERS = /^u?int|^float|^[iuf]\d/i;

function Table({ table, column, plot, turn }) {
  const last = table.first + table.cells.length;
  const hidden = table.width - table.columns.length;
  return html`<div class="table" tabindex="0" role="region" aria-label="Rows"><table>
      <thead><tr><th></th>${table.columns.map((name, at) => html`<th scope="col" aria-label=${plain(name)}>
        ${NUMBERS.test(table.types[at]) && table.width > 1
          ? html`<button class="link" aria-pressed=${at === column} title="Plot this column" onClick=${() => plot(at)}>${plain(name)}</button>` : plain(name)}
        <span class="muted">${plain(table.types[at])}</span></th>`)}</tr></thead>
      <tbody>${table.cells.map((row, at) => html`<tr key=${table.first + at}><th scope="row">${plain(table.index[at])}</th>${row.map((text, place) =>
        html`<td class=${NUMBERS.test(table.types[place]) ? "number" : ""}>${plain(text)}</td>`)}</tr>`)}</tbody></table></div>
    <p class="pager"><button disabled=${table.first === 0} onClick=${() => turn(Math.max(0, table.first - ROWS))}>Earlier rows</button>
      <button disabled=${last >= table.total} onClick=${() => turn(last)}>Later rows</button>
      <span class="muted">${table.total ? `${(table.first + 1).toLocaleString("en")}–${last.toLocaleString("en")} of ${plural(table.total, "row")}` : "no rows"}${
        hidden > 0 ? `, ${plural(hidden, "column")} not shown` : ""}</span></p>`;
}

export function Value({ timeline, name, close }) {
  const [found, setFound] = useState(null);
  const [first, setFirst] = useState(0);
  const [column, setColumn] = useState(-1);
  useEffect(() => { setFound(null); setFirst(0); setColumn(-1); }, [name]);
  useEffect(() => {
    let gone = false;
    const asked = { rows: ROWS, first_row: first, column: column < 0 ? undefined : column };
    load(() => get(query(sessionPath(timeline.id, "variables", name), asked))).then((answer) => !gone && answer && setFound(answer));
    return () => { gone = true; };
  }, [name, first, column, timeline.finished.value]);
  const variable = found?.variable, table = variable?.table;
  const text = variable ? plain(variable.repr ?? variable.value ?? "") : "";
  const plotted = column >= 0 && table ? table.columns[column] : name;
  return html`<section class="value" aria-label=${`Value of ${name}`}>
    <header><h3>${name}</h3><span class="muted">${variable?.type}</span><span class="spacer"></span><button class="quiet" onClick=${close}>Close</button></header>
    ${!found && html`<p class="muted">Loading…</p>`}
    ${table?.points && html`<${Chart} series=${[{ name: plotted, values: table.points.map((each) => each ?? NaN) }]} height=${110} label=${`Plot of ${plotted}, ${plural(table.total, "value")}`} />`}
    ${table && html`<${Table} table=${table} column=${column} plot=${setColumn} turn=${setFirst} />`}
    ${found && !table && html`<pre class="text">${text.slice(0, VALUE_CHARS)}${text.length > VALUE_CHARS ? `\n… ${plural(text.length - VALUE_CHARS, "more character")}` : ""}</pre>`}
    ${found?.notices.map((notice) => html`<p class="notice">${plain(notice)}</p>`)}
  </section>`;
}
