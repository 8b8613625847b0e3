// A small chart of lines: series over the same steps, with a limit drawn in.
import { html } from "./lib.js";

const WIDTH = 600;

function pathOf(values, times, from, to, low, high, height) {
  let out = "", pen = false;
  values.forEach((value, at) => {
    if (!Number.isFinite(value)) { pen = false; return; }
    const x = ((times ? times[at] : at) - from) / (to - from || 1) * WIDTH;
    const y = height - (value - low) / (high - low || 1) * height;
    out += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = true;
  });
  return out;
}

/** `series`: [{name, values}]. `limit` is a line across; `text` gives a value in words. */
export function Chart({ series, times, limit, height = 90, label, text = (value) => String(Number(value.toPrecision(4))), zero = false }) {
  const all = series.flatMap((each) => each.values).filter(Number.isFinite);
  if (!all.length) return html`<p class="muted">No samples yet.</p>`;
  let low = zero ? 0 : all.reduce((a, b) => Math.min(a, b)), high = all.reduce((a, b) => Math.max(a, b));
  const limited = Number.isFinite(limit) && limit > 0;
  if (limited) high = Math.max(high, limit * 1.02);
  if (high === low) high = low + 1;
  const from = times ? times[0] : 0, to = times ? times[times.length - 1] : series[0].values.length - 1;
  const y = height - (limit - low) / (high - low) * height;
  return html`<figure class="chart">
    <svg viewBox="0 -2 ${WIDTH} ${height + 4}" preserveAspectRatio="none" role="img" aria-label=${label} style=${{ height: `${height}px` }}>
      ${limited && html`<line class="limit" x1="0" x2=${WIDTH} y1=${y} y2=${y} vector-effect="non-scaling-stroke" />`}
      ${series.map((each, at) => html`<path class="line line-${at}" vector-effect="non-scaling-stroke" d=${pathOf(each.values, times, from, to, low, high, height)} />`)}
    </svg>
    <figcaption><span>${text(low)}</span><span>${limited ? `limit ${text(limit)}` : text(high)}</span></figcaption>
  </figure>`;
}
