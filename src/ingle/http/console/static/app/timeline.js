// One session in the page: its cells, filled from results when they are looked at and from events as they come.
//
// A flood of output costs the page little. Past FLOOD_CHARS of one cell the page stops following events and asks for
// the shortened result once a second, until the cell has ended. Text keeps its head and its tail.
import { batch, signal } from "./lib.js";
import { Refused, failure, follow, get, query, sessionPath } from "./api.js";
import { sessions } from "./overview.js";

const HEAD_CHARS = 40_000;
const TAIL_CHARS = 40_000;
const FLOOD_CHARS = 2_000_000;
const FLOOD_POLL = 1000;
const MAX_PARTS = 200;
const MAX_SHOWN = 30;
const PAGE = 60;
const MAX_LOADED = 150;
const FAR_EVENT = Number.MAX_SAFE_INTEGER;
const NO_SESSION = 4404;
const NEXT_LOOK_MS = 1500;
const LEAST_CHANGE = 1_000_000;

const running = (status) => status === "running" || status === "waiting_for_input" || status === "waiting_for_approval";

/** One cell. `version` moves when it changes, so that a component draws it again. */
export class Cell {
  constructor(number) {
    this.number = number;
    this.version = signal(0);
    this.code = "";
    this.status = "running";
    this.author = null;
    this.started = null;
    this.seconds = null;
    this.parts = [];
    this.left = 0;
    this.loaded = false;
    this.prompt = null;
    this.secret = false;
    this.files = null;
    this.notices = [];
    this.memory = null;
    this.seen = 0;
  }

  get running() { return running(this.status); }

  describe(info) {
    this.code = info.code;
    this.status = info.status;
    this.author = info.author || null;
    this.started = info.started_at;
    this.seconds = info.execution_time;
    if (this.running) this.loaded = true;
  }

  write(stream, text, background = false) {
    let part = this.parts[this.parts.length - 1];
    if (!part || part.stream !== stream || !!part.background !== background) {
      part = { kind: "text", stream, head: "", tail: "", dropped: 0, background };
      this.push(part);
    }
    this.seen += text.length;
    const room = HEAD_CHARS - part.head.length;
    if (room > 0 && !part.tail) { part.head += text.slice(0, room); text = text.slice(room); }
    if (!text) return;
    part.tail += text;
    // Cut rarely: a string that is cut at each event would be copied each time.
    if (part.tail.length > TAIL_CHARS * 2) {
      part.dropped += part.tail.length - TAIL_CHARS;
      part.tail = part.tail.slice(-TAIL_CHARS);
    }
  }

  show(kind, data, about, id, update) {
    const old = update && this.parts.find((part) => part.id === id);
    if (old) { old.data = data; old.about = about; return; }
    this.push({ kind, data, about, id });
    const shown = this.parts.filter((part) => part.data);
    if (shown.length > MAX_SHOWN) { this.parts.splice(this.parts.indexOf(shown[0]), 1); this.left += 1; }
  }

  push(part) {
    this.parts.push(part);
    if (this.parts.length > MAX_PARTS) { this.parts.splice(MAX_PARTS / 2, 1); this.left += 1; }
  }

  /** Take over the result that the server has. It replaces what was shown. */
  fill(result) {
    this.parts = [];
    this.left = 0;
    for (const stream of ["stdout", "stderr"]) {
      if (!result[stream]) continue;
      const gap = result.excerpts?.[stream];
      const text = result[stream], at = gap?.left_out ? gap.head : text.length;
      this.push({ kind: "text", stream, head: text.slice(0, at), tail: text.slice(at), dropped: gap?.left_out || 0 });
    }
    const from = Math.max(0, result.displays.length - MAX_SHOWN);
    this.left = from;
    result.displays.slice(from).forEach((data, at) => this.show("display", data, result.displays_metadata[from + at]));
    if (result.result) this.show("result", result.result, result.result_metadata);
    this.end(result);
    this.loaded = true;
  }

  end(result) {
    this.status = result.status;
    this.seconds = result.execution_time;
    this.error = result.error;
    this.exit = result.exit;
    this.timedOut = result.timed_out;
    this.files = result.files;
    this.notices = result.notices;
    this.prompt = result.status === "waiting_for_input" ? result.prompt ?? "" : null;
    this.secret = result.prompt_secret;
  }
}

export class Timeline {
  constructor(id) {
    this.id = id;
    this.cells = new Map();
    /** Numbers of the first and the last cell in the list. */
    this.range = signal({ first: 1, last: 0 });
    this.count = signal(0);
    this.state = signal("");
    this.info = signal(null);
    this.ended = signal("");
    /** Number of cells that ran in the session that this one is a copy of, while it has none of its own. */
    this.origin = signal(0);
    this.lost = signal(false);
    /** Moves when a cell has ended: variables, files and branches look again. */
    this.finished = signal(0);
    this.next = 1;
    this.loading = new Set();
    this.waiting = [];
    this.closed = false;
    this.start();
  }

  async start() {
    try {
      const info = await get(sessionPath(this.id));
      const known = await this.load(Math.max(1, info.execution_count - PAGE + 1), PAGE);
      this.origin.value = info.execution_count > 0 && !known ? info.execution_count : 0;
      await this.meet(info.execution_count);
      batch(() => {
        this.info.value = info;
        this.state.value = info.state;
        this.count.value = info.execution_count;
        this.range.value = { first: Math.max(1, info.execution_count - PAGE + 1), last: info.execution_count };
      });
      if (!this.closed) this.follow();
    } catch (error) {
      if (error instanceof Refused && error.status === 404) this.ended.value = error.message;
      else failure.value = error.message;
    }
  }

  /** Read the last cell, and the number of the event to go on with. */
  async meet(number) {
    const cell = this.cells.get(number);
    // A copy knows the number of its last cell, which ran in the original.
    if (!cell) return;
    const live = cell.running;
    try {
      const result = await get(query(sessionPath(this.id, "cells", number), { from: live ? undefined : FAR_EVENT }));
      this.next = result.next_event;
      if (live) cell.fill(result);
    } catch (error) {
      // Outputs of cells before a restart may be forgotten; events are told from the first that is kept.
      if (error.code !== "cell_forgotten") throw error;
    }
  }

  follow() {
    this.stop = follow(() => query(sessionPath(this.id, "events"), { from: this.next }), (event) => this.take(event), {
      opened: () => { this.lost.value = false; },
      lost: () => { this.lost.value = true; },
      over: (event) => {
        if (event.code !== NO_SESSION) return false;
        this.ended.value = event.reason || "the session has ended";
        return true;
      },
    });
  }

  close() { this.closed = true; this.stop?.(); clearTimeout(this.timer); }

  cell(number) {
    let cell = this.cells.get(number);
    if (!cell) {
      cell = new Cell(number);
      this.cells.set(number, cell);
    }
    return cell;
  }

  take(event) {
    if (event.type === "reply") return;
    this.next = event.seq + 1;
    if (event.type === "state") this.move(event);
    const number = event.cell ?? this.count.value;
    if (!number) return;
    const cell = this.cells.get(number);
    if (!cell) return;
    if (event.type === "stdout" || event.type === "stderr") cell.write(event.type, event.text, !!event.background || event.cell === null);
    else if (event.type === "display") cell.show("display", event.data, event.metadata, event.display_id, event.update);
    else if (event.type === "result") cell.show("result", event.data, event.metadata);
    else if (event.type === "input_wait") { cell.prompt = event.prompt; cell.secret = event.secret; cell.status = "waiting_for_input"; }
    else if (event.type === "notice") cell.notices = [...cell.notices, event.text];
    else if (event.type === "done") { cell.end(event.result); this.finished.value += 1; this.weigh(cell); }
    if (cell.running && cell.seen > FLOOD_CHARS) this.flood(cell);
    this.redraw(cell);
  }

  move(event) {
    batch(() => {
      this.state.value = event.state;
      if (event.state === "running" && event.code !== undefined && event.code !== null) {
        const cell = this.cell(event.cell);
        cell.before = sessions.value.get(this.id)?.memory;
        cell.describe({ code: event.code, status: "running", started_at: event.time, execution_time: null, author: event.author });
        const { first, last } = this.range.value;
        const atEnd = last === this.count.value;
        this.count.value = Math.max(this.count.value, event.cell);
        if (atEnd) this.range.value = { first: Math.max(first, event.cell - MAX_LOADED + 1), last: event.cell };
      } else if (event.state === "running" && event.cell) {
        const cell = this.cells.get(event.cell);
        if (cell) { cell.prompt = null; cell.status = "running"; }
      }
    });
    this.forget();
  }

  /** Tell how the memory changed over a cell that was watched, once the list of sessions has a newer figure. */
  weigh(cell) {
    setTimeout(() => {
      const after = sessions.value.get(this.id)?.memory;
      if (this.count.value !== cell.number || !after || !cell.before) return;
      cell.memory = Math.abs(after - cell.before) >= LEAST_CHANGE ? after - cell.before : null;
      cell.version.value += 1;
    }, NEXT_LOOK_MS);
  }

  /** Draw at most once a frame. */
  redraw(cell) {
    if (cell.due) return;
    cell.due = true;
    requestAnimationFrame(() => { cell.due = false; cell.version.value += 1; });
  }

  /** Stop following events, and look at the shortened result until the cell has ended. */
  flood(cell) {
    this.stop();
    const look = async () => {
      if (this.closed) return;
      try {
        const result = await get(sessionPath(this.id, "cells", cell.number));
        cell.fill(result);
        cell.flooded = true;
        cell.seen = 0;
        this.next = result.next_event;
        this.state.value = cell.status === "running" ? "running" : cell.running ? cell.status : "idle";
        cell.version.value += 1;
        if (cell.running) { this.timer = setTimeout(look, FLOOD_POLL); return; }
        this.finished.value += 1;
      } catch { /* the next connection tells what became of the session */ }
      this.follow();
    };
    look();
  }

  /** Load the descriptions of cells. */
  async load(first, count) {
    const { cells } = await get(query(sessionPath(this.id, "cells"), { first, count }));
    for (const info of cells) {
      if (!this.cells.has(info.cell)) this.cell(info.cell).describe(info);
    }
    return cells.length;
  }

  /** Show cells before or after those in the list. */
  async page(direction) {
    const { first, last } = this.range.value;
    const count = this.count.value;
    const from = direction < 0 ? Math.max(1, first - PAGE) : last + 1;
    if (direction < 0 ? first <= 1 : last >= count) return;
    await this.load(from, PAGE);
    this.range.value = direction < 0
      ? { first: from, last: Math.min(last, from + MAX_LOADED - 1) }
      : { first: Math.max(first, Math.min(count, last + PAGE) - MAX_LOADED + 1), last: Math.min(count, last + PAGE) };
    this.forget();
  }

  async goTo(number) {
    const first = Math.max(1, Math.min(number - PAGE / 2, this.count.value - PAGE + 1));
    await this.load(first, PAGE);
    this.range.value = { first, last: Math.min(this.count.value, first + PAGE - 1) };
    this.forget();
  }

  /** Drop cells that are not in the list. */
  forget() {
    const { first, last } = this.range.value;
    for (const [number, cell] of this.cells) {
      if ((number < first || number > last) && !cell.running) this.cells.delete(number);
    }
  }

  /** Load what a cell output, when it is looked at. Few are asked for at a time. */
  want(cell) {
    if (cell.loaded || this.waiting.includes(cell)) return;
    this.waiting.push(cell);
    this.work();
  }

  async work() {
    if (this.loading.size >= 4) return;
    const cell = this.waiting.pop();
    if (!cell) return;
    this.loading.add(cell);
    try {
      const result = await get(sessionPath(this.id, "cells", cell.number));
      cell.fill(result);
    } catch (error) {
      cell.loaded = true;
      cell.notices = [error.message];
    }
    cell.version.value += 1;
    this.loading.delete(cell);
    this.work();
  }
}
