// Messages between a view and its host: JSON-RPC by postMessage, as MCP Apps define it.
"use strict";

const PROTOCOL = "2026-01-26";
const host = window.parent;
const root = document.getElementById("view");

function send(message) {
  host.postMessage({ jsonrpc: "2.0", ...message }, "*");
}

// An element with attributes and children. Text is never read as HTML.
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Terminal output without its control sequences. A carriage return begins a line anew.
function plain(text) {
  return String(text ?? "")
    .replace(/\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-?]*[ -/]*[@-~]?|\x1b[ -/]*[0-~]?/g, "")
    .split("\n")
    .map((line) => line.replace(/\r+$/, "").split("\r").pop())
    .join("\n");
}

function block(kind, text) {
  return plain(text) === "" ? null : element("pre", { class: kind }, plain(text));
}

function show(...parts) {
  root.replaceChildren(...parts.filter((part) => part !== null));
}

function applyContext(context) {
  if (context?.theme === "light" || context?.theme === "dark") {
    document.documentElement.style.colorScheme = context.theme;
  }
}

function connect(view) {
  window.addEventListener("message", (event) => {
    const message = event.data;
    if (event.source !== host || message?.jsonrpc !== "2.0") return;
    if (message.id === "start" && message.result !== undefined) {
      applyContext(message.result.hostContext);
      send({ method: "ui/notifications/initialized", params: {} });
    } else if (message.method === "ui/notifications/tool-input") {
      view.input(message.params?.arguments ?? {});
    } else if (message.method === "ui/notifications/tool-result") {
      view.result(message.params ?? {});
    } else if (message.method === "ui/notifications/host-context-changed") {
      applyContext(message.params);
    } else if (message.method === "ui/resource-teardown" || message.method === "ping") {
      send({ id: message.id, result: {} });
    }
  });
  new ResizeObserver(() => {
    const { width, height } = document.documentElement.getBoundingClientRect();
    send({ method: "ui/notifications/size-changed", params: { width: Math.ceil(width), height: Math.ceil(height) } });
  }).observe(document.documentElement);
  const about = { name: "ingle", version: "1" };
  const params = { protocolVersion: PROTOCOL, appInfo: about, appCapabilities: {} };
  send({ id: "start", method: "ui/initialize", params });
}
