// The transcript of a session: a window of its cells that moves with the reader, and a place to run the next one.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";
import { attempt, get, load, mayAct, me, query, sessionPath } from "./api.js";
import { plain } from "./ansi.js";
import { Approval } from "./approvals.js";
import { CellView } from "./cell.js";
import { Editor } from "./editor.js";
import { plural } from "./format.js";
import { Link } from "./router.js";

const NEAR_END = 80;
const FAILED = ["error", "exit", "interrupted"];

/** Calls `act` when it comes into view, and once more for each new place `at` of the edge. */
function Edge({ act, text, at }) {
  const place = useRef(null);
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    const observer = new IntersectionObserver(([seen]) => seen.isIntersecting && latest.current(), { rootMargin: "300px" });
    observer.observe(place.current);
    return () => observer.disconnect();
  }, [at]);
  return html`<p class="edge" ref=${place}><button class="quiet" onClick=${act}>${text}</button></p>`;
}

/** Go through a long session: a slider over its cells, and jumps between those that failed. */
function LookBack({ timeline, selected, choose }) {
  const count = timeline.count.value;
  // A copy that has run nothing has the number of its original, and no cells.
  if (count < 2 || timeline.origin.value) return null;
  const go = async (number) => {
    choose(number);
    await attempt(() => timeline.goTo(number));
    choose(number); // again: a scroll at the end, before other cells came, holds on to the end
    const box = document.querySelector(".cells");
    const show = () => document.getElementById(`cell-${number}`)?.scrollIntoView({ block: "start" });
    // The list is drawn before the next frame. Outputs that load move it once more, unless the reader has gone on.
    requestAnimationFrame(() => {
      show();
      const top = box.scrollTop;
      setTimeout(() => box.scrollTop === top && show(), 300);
    });
  };
  const failed = async (direction) => {
    let from = (selected || count + 1) + direction;
    while (from >= 1 && from <= count) {
      const first = direction > 0 ? from : Math.max(1, from - 199);
      const size = direction > 0 ? 200 : from - first + 1;
      const { cells } = await get(query(sessionPath(timeline.id, "cells"), { first, count: size }));
      const found = cells.filter((cell) => FAILED.includes(cell.status));
      if (found.length) return go((direction > 0 ? found[0] : found[found.length - 1]).cell);
      from = direction > 0 ? first + size : first - 1;
    }
  };
  return html`<div class="lookback">
    <label class="muted">Cell <input type="range" min="1" max=${count} value=${selected || count} aria-valuetext=${`Cell ${selected || count} of ${count}`}
      onChange=${(event) => go(Number(event.target.value))} /></label>
    <output>${selected || count} of ${count.toLocaleString("en")}</output>
    <button class="quiet" aria-label="Previous error" onClick=${() => attempt(() => failed(-1))}>‹ error</button>
    <button class="quiet" aria-label="Next error" onClick=${() => attempt(() => failed(1))}>error ›</button>
  </div>`;
}

export function Transcript({ timeline }) {
  const list = useRef(null);
  const [pinned, setPinned] = useState(true);
  const [selected, setSelected] = useState(null);
  const { first, last } = timeline.range.value;
  const count = timeline.count.value;
  const cells = [];
  for (let number = first; number <= last; number += 1) {
    const cell = timeline.cells.get(number);
    if (cell) cells.push(cell);
  }
  // Only a reader who scrolls up lets go of the end; outputs that grow move it away, too.
  const before = useRef({ top: 0, height: 0 });
  const scrolled = () => {
    const { scrollTop: top, scrollHeight: height, clientHeight } = list.current;
    if (height - top - clientHeight < NEAR_END && last >= count) setPinned(true);
    else if (top < before.current.top && height === before.current.height) setPinned(false);
    before.current = { top, height };
  };
  const toEnd = async () => {
    setSelected(null);
    if (last < count) await attempt(() => timeline.goTo(count));
    requestAnimationFrame(() => { if (list.current) list.current.scrollTop = list.current.scrollHeight; });
  };
  // The end stays in view while output comes, unless the reader has scrolled away.
  useLayoutEffect(() => {
    if (!pinned) return;
    const keep = () => { if (list.current) list.current.scrollTop = list.current.scrollHeight; };
    keep();
    const observer = new ResizeObserver(keep);
    observer.observe(list.current.firstElementChild);
    return () => observer.disconnect();
  }, [pinned]);
  const earlier = async () => {
    const box = list.current, height = box.scrollHeight, top = box.scrollTop;
    await load(() => timeline.page(-1));
    requestAnimationFrame(() => { box.scrollTop = top + box.scrollHeight - height; });
  };
  // Threads and tasks of earlier cells call tools, too.
  const others = timeline.approvals.value.filter((each) => !timeline.cells.get(each.cell)?.running);
  return html`<section class="transcript" aria-label="Transcript">
    <${LookBack} timeline=${timeline} selected=${selected} choose=${(number) => { setPinned(false); setSelected(number); }} />
    <div class="cells" ref=${list} onScroll=${scrolled} tabindex="0" role="feed" aria-label="Cells"><div>
      ${first > 1 && html`<${Edge} act=${earlier} at=${first} text=${`Load earlier cells (${plural(first - 1, "more")})`.replace("mores", "more")} />`}
      ${cells.map((cell) => html`<${CellView} key=${cell.number} timeline=${timeline} cell=${cell} selected=${cell.number === selected} />`)}
      ${last < count && html`<${Edge} act=${() => load(() => timeline.page(1))} at=${last} text="Load later cells" />`}
      ${!cells.length && timeline.info.value && html`<p class="empty">${timeline.origin.value
        ? `This is a copy. ${plural(timeline.origin.value, "cell")} ran in the original.` : "Nothing has run in this session yet."}</p>`}
    </div></div>
    ${!pinned && html`<button class="to-end" onClick=${toEnd}>Newest ↓</button>`}
    ${others.length > 0 && html`<div class="others">${others.map((each) => html`<${Approval} key=${each.id} session=${timeline.id} approval=${each} done=${() => timeline.askApprovals()} />`)}</div>`}
    ${timeline.ended.value
      ? html`<p class="ended" role="status">${plain(timeline.ended.value)} ${!me.value?.read_only && html`<${Link} to="/">All sessions<//>`}</p>`
      : mayAct() && html`<${Editor} timeline=${timeline} />`}
  </section>`;
}
