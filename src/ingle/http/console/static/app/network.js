// Hosts that a session reached and was refused, each with the flag that would allow it.
import { html, useEffect, useState } from "./lib.js";
import { get, load, sessionPath } from "./api.js";
import { plain } from "./ansi.js";
import { age, moment, plural } from "./format.js";

export function Network({ timeline }) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    if (timeline.ended.value) return;
    load(() => get(sessionPath(timeline.id, "network"))).then((answer) => answer && setFound(answer));
  }, [timeline, timeline.finished.value]);
  if (!found) return html`<p class="muted">Loading…</p>`;
  return html`<div class="network">
    <p>Network access: <b>${found.network}</b></p>
    ${found.hosts.length > 0 && html`<table class="rows"><thead><tr><th scope="col">Host</th><th scope="col" class="number">Reached</th><th scope="col" class="number">Refused</th><th scope="col" class="number">Last</th></tr></thead>
      <tbody>${found.hosts.map((each) => html`<tr key=${each.host}><th scope="row">${plain(each.host)}
        ${each.refused > 0 && each.flag && html`<p class="muted">To allow it: <code>${plain(each.flag)}</code></p>`}</th>
        <td class="number">${each.reached}</td><td class="number ${each.refused ? "refused" : ""}">${each.refused}</td><td class="number" title=${moment(each.last)}>${age(each.last)}</td></tr>`)}</tbody></table>`}
    ${!found.hosts.length && !found.notices.length && html`<p class="empty">No host was asked for.</p>`}
    ${found.more > 0 && html`<p class="muted">${plural(found.more, "earlier host")} forgotten.</p>`}
    ${found.notices.map((notice) => html`<p class="notice">${plain(notice)}</p>`)}
  </div>`;
}
