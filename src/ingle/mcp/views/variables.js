// The variables of a session as a table, or one of them in full.
const COLUMNS = ["name", "type", "extent", "size", "preview"];

function extent(variable) {
  if (Array.isArray(variable.shape)) return variable.shape.map(Number).join(" × ");
  return variable.length === undefined || variable.length === null ? "" : String(Number(variable.length));
}

function size(count) {
  if (typeof count !== "number") return "";
  if (count < 1000) return `${count} bytes`;
  return count < 1e6 ? `${(count / 1e3).toFixed(0)} kB` : `${(count / 1e6).toFixed(1)} MB`;
}

function row(variable) {
  const cells = [variable.name, variable.type ?? "", extent(variable), size(variable.size), plain(variable.preview)];
  return element("tr", null, ...cells.map((text) => element("td", null, String(text))));
}

function table(variables) {
  const head = element("tr", null, ...COLUMNS.map((name) => element("th", { scope: "col" }, name)));
  return element("table", null, element("thead", null, head), element("tbody", null, ...variables.map(row)));
}

connect({
  input() {
    show(element("p", { class: "status" }, "reading"));
  },
  result(told) {
    const listed = told._meta?.["ingle/variables"];
    const one = told._meta?.["ingle/variable"];
    if (listed && Array.isArray(listed.variables)) {
      const more = listed.more ? element("p", { class: "status" }, `${Number(listed.more)} more`) : null;
      show(table(listed.variables), more, element("p", { class: "status" }, `variables of ${listed.session_id}`));
    } else if (one?.variable) {
      show(table([one.variable]), block("value", one.variable.repr ?? one.variable.value));
    } else {
      const texts = (Array.isArray(told.content) ? told.content : []).filter((part) => part?.type === "text");
      show(...texts.map((part) => block("value", part.text)));
    }
  },
});
