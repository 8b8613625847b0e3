// The page of one session: its transcript, and beside it one view of what it has and does.
import { html, useEffect, useMemo } from "./lib.js";
import { me } from "./api.js";
import { plain } from "./ansi.js";
import { byWhom } from "./format.js";
import { Actions } from "./actions.js";
import { Branches } from "./branches.js";
import { Files } from "./files.js";
import { sessions, title } from "./overview.js";
import { Network } from "./network.js";
import { Resources } from "./resources.js";
import { Link } from "./router.js";
import { Shell } from "./shell.js";
import { Timeline } from "./timeline.js";
import { Transcript } from "./transcript.js";
import { Variables } from "./variables.js";
import { State } from "./words.js";

const VIEWS = [
  { key: "variables", name: "Variables", view: Variables },
  { key: "files", name: "Files", view: Files, acts: true },
  { key: "branches", name: "Branches", view: Branches },
  { key: "resources", name: "Resources", view: Resources },
  { key: "network", name: "Network", view: Network, acts: true },
  { key: "shell", name: "Shell", view: Shell, acts: true },
];

/** The address names a session that is not here, or not any more. */
function Missing({ why }) {
  return html`<main class="list"><div class="empty" role="status"><p>${plain(why)}</p>
    ${!me.value?.read_only && html`<p><${Link} to="/">All sessions<//></p>`}</div></main>`;
}

export function SessionPage({ id, view }) {
  const timeline = useMemo(() => new Timeline(id), [id]);
  useEffect(() => { title.value = `${id} · ingle`; return () => timeline.close(); }, [timeline]);
  if (timeline.ended.value && !timeline.info.value) return html`<${Missing} why=${timeline.ended.value} />`;
  const row = sessions.value.get(id);
  const here = `/sessions/${encodeURIComponent(id)}`;
  const views = VIEWS.filter((each) => !(each.acts && me.value?.read_only));
  const shown = views.find((each) => each.key === view) || views[0];
  const driver = timeline.cells.get(timeline.count.value);
  driver?.version.value;
  return html`<main class="session" data-view=${view ? "side" : "main"}>
    <header class="session-head">
      <h1>${id}</h1>
      <${State} state=${timeline.ended.value ? "dead" : timeline.state.value || "starting"} since=${row?.since} trial=${row?.trial} />
      ${driver?.running && driver.author && html`<span class="muted">driven by <b>${byWhom(driver.author)}</b></span>`}
      ${timeline.lost.value && html`<span class="badge error" role="status">connection lost, trying again</span>`}
      ${me.value?.read_only && html`<span class="tag">read only</span>`}
      <span class="spacer"></span>
      <${Actions} timeline=${timeline} />
    </header>
    <nav class="tabs" aria-label="Views">
      <${Link} to=${here} class="only-narrow" aria-current=${view ? undefined : "page"}>Transcript<//>
      ${views.map((each) => html`<${Link} key=${each.key} to=${`${here}/${each.key}`} class=${each === shown ? "shown" : ""} aria-current=${each.key === view ? "page" : undefined}>${each.name}<//>`)}
    </nav>
    <div class="columns">
      <${Transcript} timeline=${timeline} />
      <aside aria-label=${shown.name}><${shown.view} timeline=${timeline} /></aside>
    </div>
  </main>`;
}
