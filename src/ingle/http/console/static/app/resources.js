// What a session uses: CPU and memory over the last half hour with their limits, and the machine it shares.
import { html, useEffect, useState } from "./lib.js";
import { get, load, sessionPath } from "./api.js";
import { Chart } from "./chart.js";
import { plain } from "./ansi.js";
import { bytes, duration, percent, plural } from "./format.js";
import { machine } from "./overview.js";

const LOOK_MS = 5000;
const MAX_PROCESSES = 12;

/** Limits in words; those in bytes say so. */
const LIMITS = {
  memory: ["memory", bytes], processes: ["processes", String], files: ["open files", String], file_size: ["size of a file", bytes],
  tmp: ["temporary files", bytes], disk: ["disk", bytes], cpu: ["CPU time", duration], gpu_memory: ["GPU memory", bytes],
};

function Limit({ name, value }) {
  const [words, text] = LIMITS[name] || [name.replaceAll("_", " "), String];
  return html`<dt>Limit: ${words}</dt><dd>${text(value)}</dd>`;
}

/** What runs in the session now, the largest first. */
function Processes({ all }) {
  if (!all?.length) return null;
  return html`<h3>Processes <span class="muted">${all.length}</span></h3>
    <table class="rows"><tbody>${all.slice(0, MAX_PROCESSES).map((each, at) => html`<tr key=${at}><th scope="row">${plain(each.name)}</th><td class="number">${bytes(each.memory)}</td></tr>`)}</tbody></table>
    ${all.length > MAX_PROCESSES && html`<p class="muted">${plural(all.length - MAX_PROCESSES, "smaller one")} not shown.</p>`}`;
}

/** The samples that the server keeps, read again while the page is looked at. */
function useSamples(timeline) {
  const [kept, setKept] = useState({ samples: [] });
  useEffect(() => {
    if (timeline.ended.value) return;
    const look = () => load(() => get(sessionPath(timeline.id, "usage"))).then((found) => found && setKept(found));
    look();
    const timer = setInterval(() => { if (!document.hidden) look(); }, LOOK_MS);
    return () => clearInterval(timer);
  }, [timeline, timeline.ended.value]);
  return kept;
}

export function Resources({ timeline }) {
  const kept = useSamples(timeline);
  const samples = kept.samples;
  const info = timeline.info.value, facts = machine.value;
  const limits = info?.limits || {};
  const times = samples.map((each) => each.time);
  const span = times.length > 1 ? duration(times[times.length - 1] - times[0]) : "";
  const last = samples[samples.length - 1];
  return html`<div class="resources">
    <h3>Memory <span class="muted">${last && Number.isFinite(last.memory) ? bytes(last.memory) : ""}${kept.memory_limit ? ` of ${bytes(kept.memory_limit)}` : ""}</span></h3>
    <${Chart} series=${[{ name: "memory", values: samples.map((each) => each.memory ?? NaN) }]} times=${times} limit=${kept.memory_limit ?? undefined} zero text=${bytes} label=${`Memory over ${span}`} />
    <h3>CPU <span class="muted">${last && Number.isFinite(last.cpus) ? percent(last.cpus) : ""}</span></h3>
    <${Chart} series=${[{ name: "cpu", values: samples.map((each) => each.cpus ?? NaN) }]} times=${times} zero text=${percent} label=${`CPU over ${span}`} />
    <p class="muted">${span && `The last ${span}.`}</p>
    <${Processes} all=${kept.processes} />
    <dl class="facts">
      ${Number.isFinite(kept.disk) && html`<dt>Files</dt><dd>${bytes(kept.disk)} in its folder</dd>`}
      ${info && html`<dt>CPU time</dt><dd>${duration(info.cpu_seconds)}</dd><dt>Python</dt><dd>${info.python}</dd><dt>Folder</dt><dd><code>${info.cwd}</code></dd>
        <dt>Isolation</dt><dd>${info.isolation}</dd><dt>Network</dt><dd>${info.network}</dd>`}
      ${Object.entries(limits).filter(([, value]) => value !== null).map(([name, value]) => html`<${Limit} key=${name} name=${name} value=${value} />`)}
      ${facts && html`<dt>Machine</dt><dd>${facts.cores} cores, load ${facts.load}; memory ${bytes(facts.memory_used)} of ${bytes(facts.memory)}; disk ${bytes(facts.disk_used)} of ${bytes(facts.disk)}</dd>`}
    </dl>
  </div>`;
}
