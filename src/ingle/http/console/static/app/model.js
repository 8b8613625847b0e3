// One cell as data: its code, its outputs in the order in which they came, and what it waits for.
//
// The same events fill it while it runs and after a reload. Text keeps its head and its tail, so a flood costs little.
import { signal } from "./lib.js";

const HEAD_CHARS = 40_000;
const TAIL_CHARS = 40_000;
const MAX_PARTS = 200;
const MAX_SHOWN = 30;

const running = (status) => status === "running" || status.startsWith("waiting");

/** One cell. `version` moves when it changes, so that a component draws it again. */
export class Cell {
  constructor(number) {
    this.number = number;
    this.version = signal(0);
    this.code = "";
    this.status = "running";
    this.author = null;
    /** Who interrupted it. */
    this.interrupter = null;
    this.started = null;
    this.seconds = null;
    this.parts = [];
    this.left = 0;
    this.loaded = false;
    /** Memory of the session when it began. */
    this.weight = null;
    this.prompt = null;
    this.secret = false;
    this.files = null;
    this.notices = [];
    /** Notices of what happened to the session after this cell, such as a rollback. */
    this.later = [];
    /** Notes that people and notebooks put before the first cell, and after this one. */
    this.before = [];
    this.notes = [];
    this.memory = null;
    this.seen = 0;
  }

  get running() { return running(this.status); }

  /** Whether the output ends with the prompt of the answer that is waited for. */
  get promptShown() {
    const part = this.parts[this.parts.length - 1];
    return !!this.prompt && part?.kind === "text" && (part.tail || part.head).endsWith(this.prompt);
  }

  describe(info) {
    this.code = info.code;
    this.status = info.status;
    this.author = info.author || null;
    this.started = info.started_at;
    this.seconds = info.execution_time;
    if (this.running) this.loaded = true;
  }

  /** Take one event of the session that came while this cell was the last one. */
  take(event) {
    switch (event.type) {
      case "state": this.move(event); break;
      case "stdout": case "stderr": this.write(event.type, event.text, !!event.background || event.cell === null); break;
      case "display": this.show("display", event.data, event.metadata, event.display_id, event.update); break;
      case "result": this.show("result", event.data, event.metadata); break;
      case "tool": this.push({ kind: "call", call: event }); break;
      case "input_wait": this.prompt = event.prompt; this.secret = event.secret; this.status = "waiting_for_input"; break;
      case "notice":
        if (event.cell === null) this.later = [...this.later, event.text];
        else this.notices = [...this.notices, event.text];
        break;
      case "note": if (!event.raw) this.notes = [...this.notes, event]; break;
      case "done": this.end(event.result); this.interrupter = event.interrupted_by || null; break;
    }
  }

  move(event) {
    // Between cells the session has states of its own.
    if (event.cell !== this.number) return;
    if (event.state === "running" && event.code !== undefined && event.code !== null) {
      this.describe({ code: event.code, status: "running", started_at: event.time, execution_time: null, author: event.author });
    } else if (event.state === "running") {
      if (event.author) this.push({ kind: "answer", author: event.author, secret: this.secret });
      this.prompt = null;
      this.status = "running";
    }
    else if (event.state === "waiting_for_approval") { this.prompt = null; this.status = event.state; }
  }

  /** Begin again from events that were kept. */
  replay(events) {
    const { code, author } = this;
    this.parts = [];
    this.left = 0;
    this.seen = 0;
    this.before = [];
    this.notes = [];
    this.later = [];
    let begun = false;
    for (const event of events) {
      begun ||= event.type !== "note";
      if (begun) this.take(event);
      else if (!event.raw) this.before = [...this.before, event];
    }
    // The code of cleared cells is not told any more, and that of the list is as it should be.
    Object.assign(this, { code, author, loaded: true });
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
