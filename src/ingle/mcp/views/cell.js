// The transcript of one cell: code, output, tables, pictures, error, status.
const PICTURE = /^image\/(png|jpeg|gif|webp)$/;
const BASE64 = /^[A-Za-z0-9+/=\s]*$/;
let code = "";

function picture(mime, data) {
  if (!PICTURE.test(mime) || !BASE64.test(data)) return null;
  return element("img", { alt: "picture of the cell", src: `data:${mime};base64,${data}` });
}

// HTML of a cell gets no rights: no scripts, no origin, no way to this page.
function frame(html) {
  return element("iframe", { sandbox: "", title: "output of the cell", srcdoc: String(html) });
}

function bundle(data) {
  if (!data) return null;
  return data["text/html"] ? frame(data["text/html"]) : block("value", data["text/plain"]);
}

function status(result) {
  const seconds = Number(result.execution_time ?? 0);
  const time = seconds >= 0.1 ? `${seconds.toFixed(1)} s` : `${(seconds * 1000).toFixed(1)} ms`;
  return element("p", { class: `status ${result.success ? "ok" : "not-ok"}` },
    `cell ${Number(result.cell)} of ${result.session_id} · ${result.status} · ${time}`);
}

connect({
  input(given) {
    code = typeof given.code === "string" ? given.code : "";
    show(block("code", code), element("p", { class: "status" }, "running"));
  },
  result(told) {
    const result = told._meta?.["ingle/result"];
    const content = Array.isArray(told.content) ? told.content : [];
    const pictures = content.filter((part) => part?.type === "image")
      .map((part) => picture(String(part.mimeType), String(part.data)));
    if (!result) {
      const texts = content.filter((part) => part?.type === "text").map((part) => block("stdout", part.text));
      show(block("code", code), ...texts, ...pictures);
      return;
    }
    const displays = Array.isArray(result.displays) ? result.displays.map(bundle) : [];
    show(
      block("code", code),
      block("stdout", result.stdout),
      block("stderr", result.stderr),
      ...displays,
      ...pictures,
      bundle(result.result),
      block("error", result.error?.traceback),
      ...(Array.isArray(result.notices) ? result.notices.map((notice) => block("notice", notice)) : []),
      status(result),
    );
  },
});
