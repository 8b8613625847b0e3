// One session in the page: its cells, filled from results when they are looked at and from events as they come.
//
// A flood of output costs the page little. Past FLOOD_CHARS of one cell the page stops following events and asks for
// the shortened result once a second, until the cell has ended.
import { batch, signal } from "./lib.js";
import { Refused, failure, follow, get, me, query, sessionPath } from "./api.js";
import { Cell } from "./model.js";
import { sessions } from "./overview.js";

const FLOOD_CHARS = 2_000_000;
const FLOOD_POLL = 1000;
/** Characters of a cell that are read as events, in their order. Of a longer one the shortened result is read. */
const TOLD_CHARS = 400_000;
const PAGE = 60;
/** Cells at the end of the session that are drawn first; a screen shows fewer. */
const FIRST_PAGE = 30;
const MAX_LOADED = 150;
const FAR_EVENT = Number.MAX_SAFE_INTEGER;
const NO_SESSION = 4404;
const NEXT_LOOK_MS = 1500;
const LEAST_CHANGE = 1_000_000;

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
    /** Calls of tools that wait for a person. */
    this.approvals = signal([]);
    /** Notes before the first cell. */
    this.early = signal([]);
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
      const first = Math.max(1, info.execution_count - FIRST_PAGE + 1);
      const known = await this.load(first, FIRST_PAGE);
      this.origin.value = info.execution_count > 0 && !known ? info.execution_count : 0;
      await this.meet(info.execution_count);
      batch(() => {
        this.info.value = info;
        this.state.value = info.state;
        this.count.value = info.execution_count;
        this.range.value = { first, last: info.execution_count };
      });
      if (!this.closed) this.follow();
      this.weighEarlier();
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
    if (cell.running) { this.next = await this.fill(cell); this.askApprovals(); return; }
    try {
      this.next = (await get(query(sessionPath(this.id, "cells", number), { from: FAR_EVENT }))).next_event;
    } catch (error) {
      // Outputs of cells before a restart may be forgotten; events are told from the first that is kept.
      if (error.code !== "cell_forgotten") throw error;
    }
  }

  /** Fill a cell with what it has told so far. Returns the number of the event that follows. */
  async fill(cell) {
    const where = sessionPath(this.id, "cells", cell.number);
    const { events, more } = await get(query(`${where}/events`, { characters: TOLD_CHARS }));
    if (!more && events.length) {
      cell.replay(events);
      return events[events.length - 1].seq + 1;
    }
    const result = await get(where);
    cell.fill(result);
    return result.next_event;
  }

  /** Read which calls wait for a person, and again if one more came meanwhile. A reader of a link does not see them. */
  async askApprovals() {
    if (me.value?.read_only) return;
    this.asked = (this.asked || 0) + 1;
    if (this.asked > 1) return;
    let answered = 0;
    while (answered !== this.asked && !this.closed) {
      answered = this.asked;
      const found = await get(sessionPath(this.id, "approvals")).catch(() => null);
      this.approvals.value = found?.approvals || [];
    }
    this.asked = 0;
  }

  follow() {
    this.stop = follow(() => query(sessionPath(this.id, "events"), { from: this.next }), (event) => this.take(event), {
      opened: () => { this.lost.value = false; },
      lost: () => { this.lost.value = true; },
      over: (event) => {
        if (event.code !== NO_SESSION) return false;
        // The page has read this session before, also if the server no longer finds it.
        this.ended.value = "the session has ended";
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
    if (event.type === "approval" || (event.type === "tool" && this.approvals.value.length)) this.askApprovals();
    const number = event.cell ?? this.count.value;
    if (!number && event.type === "note") this.early.value = [...this.early.value, event];
    const cell = this.cells.get(number);
    if (!cell) return;
    cell.take(event);
    if (event.type === "done") {
      this.finished.value += 1;
      if (this.approvals.value.length) this.askApprovals();
      this.weigh(cell);
    }
    if (cell.running && cell.seen > FLOOD_CHARS) this.flood(cell);
    this.redraw(cell);
  }

  move(event) {
    this.state.value = event.state;
    if (event.state !== "running" || event.code === undefined || event.code === null) return;
    batch(() => {
      const cell = this.cell(event.cell);
      cell.weight = sessions.value.get(this.id)?.memory;
      if (this.early.value.length) { cell.before = this.early.value; this.early.value = []; }
      const { first, last } = this.range.value;
      const atEnd = last === this.count.value;
      this.count.value = Math.max(this.count.value, event.cell);
      if (atEnd) this.range.value = { first: Math.max(first, event.cell - MAX_LOADED + 1), last: event.cell };
    });
    this.forget();
  }

  /** Tell how the memory changed over a cell that was watched, once the list of sessions has a newer figure. */
  weigh(cell) {
    setTimeout(() => {
      const after = sessions.value.get(this.id)?.memory;
      if (this.count.value !== cell.number || !after || !cell.weight) return;
      cell.memory = Math.abs(after - cell.weight) >= LEAST_CHANGE ? after - cell.weight : null;
      cell.version.value += 1;
    }, NEXT_LOOK_MS);
  }

  /** Tell how the memory changed over cells before the page was opened, where samples lie around one cell alone. */
  async weighEarlier() {
    const { samples } = await get(sessionPath(this.id, "usage")).catch(() => ({ samples: [] }));
    const ended = [...this.cells.values()].filter((cell) => cell.started && cell.seconds !== null);
    for (const cell of ended) {
      const end = cell.started + cell.seconds;
      const before = samples.findLast((each) => each.time <= cell.started), after = samples.find((each) => each.time >= end);
      if (!before || !after || Math.abs(after.memory - before.memory) < LEAST_CHANGE) continue;
      if (ended.some((other) => other !== cell && other.started < after.time && other.started + other.seconds > before.time)) continue;
      cell.memory = after.memory - before.memory;
      cell.version.value += 1;
    }
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
    const before = this.range.value;
    const { first, last } = before;
    const count = this.count.value;
    const from = direction < 0 ? Math.max(1, first - PAGE) : last + 1;
    if (direction < 0 ? first <= 1 : last >= count) return;
    await this.load(from, PAGE);
    if (this.range.value !== before) return; // the reader has gone elsewhere meanwhile
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
      await this.fill(cell);
    } catch (error) {
      cell.loaded = true;
      cell.notices = [error.message];
    }
    cell.version.value += 1;
    this.loading.delete(cell);
    this.work();
  }
}
