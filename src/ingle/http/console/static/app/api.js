// Requests to the server. A read-only link has its secret in the path, so every address begins with `base`.
import { signal } from "./lib.js";

export const base = document.body.dataset.base;
export const files = document.body.dataset.files;

/** Who looks at the page: {name, scopes, read_only, …}; null until the server has told. */
export const me = signal(null);

/** The last failure, shown at the edge of the page. */
export const failure = signal(null);

export const mayAct = () => !!me.value && !me.value.read_only && me.value.scopes.includes("execute");
export const mayApprove = () => !!me.value && !me.value.read_only && me.value.scopes.includes("approve");
export const isAdmin = () => !!me.value && me.value.scopes.includes("admin");

export class Refused extends Error {
  constructor(problem, status) {
    super(problem?.detail || `the server answered ${status}`);
    this.code = problem?.code || "";
    this.status = status;
    this.cell = problem?.cell ?? null;
  }
}

export const path = (...parts) => "/v1/" + parts.map(encodeURIComponent).join("/");
export const sessionPath = (id, ...rest) => path("sessions", id, ...rest);

/** Send one request and return the decoded answer. Throws Refused. */
export async function ask(method, where, body, options = {}) {
  const headers = { accept: "application/json" };
  const init = { method, headers, credentials: "same-origin", signal: options.signal };
  if (body instanceof Blob) init.body = body;
  else if (body !== undefined) {
    headers["content-type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(base + where, init);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused({ detail: "The server does not answer. It may have been stopped.", code: "unreachable" }, 0);
  }
  if (answer.status === 401) {
    location.reload();
    throw new Refused({ detail: "Sign in again.", code: "unauthorized" }, 401);
  }
  if (options.raw && answer.ok) return answer;
  const type = answer.headers.get("content-type") || "";
  const value = type.includes("json") ? await answer.json() : null;
  if (!answer.ok) throw new Refused(value, answer.status);
  return value;
}

export const get = (where, options) => ask("GET", where, undefined, options);
export const post = (where, body = {}) => ask("POST", where, body);

/** Return a path with a query, without parameters that are undefined. */
export function query(where, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null);
  return given.length ? `${where}?${new URLSearchParams(given)}` : where;
}

/** Run an action of the person, and show its failure. Returns undefined when it fails. */
export function attempt(action) {
  failure.value = null;
  return load(action);
}

/** Read what the page shows by itself, and show the failure. What the person was told before stays. */
export async function load(action) {
  try {
    return await action();
  } catch (error) {
    failure.value = error.message;
  }
}

const FIRST_PAUSE = 300;
const LONGEST_PAUSE = 5000;

/**
 * Keep a WebSocket open. `where()` gives its path each time it is opened, `take` gets each decoded message, and `over`
 * tells by the close code whether to stay closed. Returns a function that closes it, and `socket()` for sending.
 */
export function follow(where, take, { over = () => false, opened = () => {}, lost = () => {} } = {}) {
  let socket = null, timer = null, pause = FIRST_PAUSE, ended = false;
  const open = () => {
    const url = new URL(base + where(), location.href);
    url.protocol = url.protocol.replace("http", "ws");
    socket = new WebSocket(url);
    socket.onopen = () => { pause = FIRST_PAUSE; opened(); };
    socket.onmessage = (event) => take(JSON.parse(event.data));
    socket.onclose = (event) => {
      if (ended || over(event)) return;
      lost(event);
      timer = setTimeout(open, pause);
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    };
  };
  open();
  const close = () => { ended = true; clearTimeout(timer); socket.onclose = null; socket.close(); };
  close.socket = () => socket;
  return close;
}
