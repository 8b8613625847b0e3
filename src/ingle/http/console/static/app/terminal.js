// A terminal for a shell task. The library is loaded when the first one is opened.
import { html, loadTerminal, useEffect, useRef } from "./lib.js";
import { failure, get, load, path, post, query } from "./api.js";
import { theme } from "./theme.js";

const SOON_MS = 40;
const LATER_MS = 800;

const nonce = document.querySelector("script[nonce]")?.nonce || "";
const live = (task) => task.status === "running" || task.status === "paused";

/** Open a terminal in an element. The style elements that it makes while it opens get the nonce of the page. */
function openIn(terminal, place) {
  const make = Document.prototype.createElement;
  document.createElement = (name, ...rest) => {
    const made = make.call(document, name, ...rest);
    if (name === "style") made.nonce = nonce;
    return made;
  };
  try {
    terminal.open(place);
  } finally {
    delete document.createElement;
  }
}

function colors() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
  const basic = Object.fromEntries(names.map((name) => [name, value(`ansi-${name}`)]));
  const bright = Object.fromEntries(names.map((name) => [`bright${name[0].toUpperCase()}${name.slice(1)}`, value(`ansi-${name}`)]));
  return { ...basic, ...bright, background: value("sunken"), foreground: value("text"), cursor: value("accent"), selectionBackground: value("strong-line") };
}

/** Copy a task to a terminal, and what is typed to the task, until it is over. Returns a function that ends that. */
function connect(terminal, fit, id, ended) {
  let next = 0, pause = SOON_MS, gone = false, typed = "", sending = false, wake = () => {};
  const sleep = () => new Promise((resolve) => { const timer = setTimeout(resolve, pause); wake = () => { clearTimeout(timer); resolve(); }; });
  // One request at a time, so that no text comes twice. Soon after a key or text, and later when nothing happens.
  const follow = async () => {
    while (!gone) {
      const task = await load(() => get(query(path("shell", id), { wait: 0, from: next })));
      if (gone || !task) return;
      next = task.next_event;
      if (task.stdout) terminal.write(task.stdout);
      pause = task.stdout ? SOON_MS : Math.min(LATER_MS, pause * 1.5);
      if (!live(task)) { terminal.options.disableStdin = true; ended(task); return; }
      await sleep();
    }
  };
  const send = async () => {
    if (sending) return;
    sending = true;
    while (typed && !gone) {
      const text = typed;
      typed = "";
      await post(path("shell", id, "input"), { text }).catch((error) => { failure.value = error.message; });
      pause = SOON_MS;
      wake();
    }
    sending = false;
  };
  const resize = () => post(path("shell", id, "resize"), { rows: terminal.rows, columns: terminal.cols }).catch(() => {});
  terminal.onData((text) => { typed += text; send(); });
  terminal.onResize(resize);
  resize();
  const observer = new ResizeObserver(() => fit.fit());
  observer.observe(terminal.element.parentElement);
  follow();
  return () => { gone = true; wake(); observer.disconnect(); terminal.dispose(); };
}

export function TaskTerminal({ id, ended }) {
  const place = useRef(null);
  useEffect(() => {
    let stop = null, gone = false;
    loadTerminal().then(({ Terminal, FitAddon }) => {
      if (gone) return;
      const terminal = new Terminal({
        fontSize: 12.5, fontFamily: getComputedStyle(place.current).fontFamily, theme: colors(), screenReaderMode: true,
        // A link in the output of a program opens nothing.
        linkHandler: { activate: () => {} },
      });
      const fit = new FitAddon();
      terminal.loadAddon(fit);
      openIn(terminal, place.current);
      fit.fit();
      terminal.focus();
      stop = connect(terminal, fit, id, ended);
    });
    return () => { gone = true; stop?.(); };
  }, [id, theme.value]);
  return html`<div class="terminal-box" ref=${place} aria-label="Terminal"></div>`;
}
