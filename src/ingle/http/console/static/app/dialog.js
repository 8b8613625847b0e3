// Questions to the person: what will happen, what will be lost, and the fields an action needs.
import { html, signal, useEffect, useRef } from "./lib.js";

const question = signal(null);

/**
 * Ask before an action. Returns the values of the fields, or null when the person does not want it.
 * `lost` says what cannot be brought back.
 */
export function ask(about) {
  return new Promise((resolve) => { question.value = { fields: [], ...about, resolve }; });
}

function Field({ field }) {
  if (field.type === "checkbox") return html`<label class="check"><input type="checkbox" name=${field.name} checked=${field.value} /> ${field.label}</label>`;
  if (field.options) return html`<label>${field.label}<select name=${field.name}>${field.options.map((each) => html`<option value=${each.value}>${each.text}</option>`)}</select></label>`;
  return html`<label>${field.label}<input name=${field.name} type=${field.type || "text"} value=${field.value || ""} required=${field.required}
    pattern=${field.pattern} autocomplete="off" spellcheck="false" />${field.hint && html`<small class="muted">${field.hint}</small>`}</label>`;
}

export function Dialog() {
  const box = useRef(null);
  const about = question.value;
  useEffect(() => { if (about && !box.current.open) box.current.showModal(); }, [about]);
  if (!about) return null;
  // The browser gives the focus back to the button that asked when a dialog is closed, and not when it is removed.
  const answer = (value) => { box.current?.close(); question.value = null; about.resolve(value); };
  const submit = (event) => {
    event.preventDefault();
    answer(Object.fromEntries(new FormData(event.target)));
  };
  return html`<dialog ref=${box} aria-labelledby="dialog-title" onCancel=${(event) => { event.preventDefault(); answer(null); }}>
    <form onSubmit=${submit}>
      <h2 id="dialog-title">${about.title}</h2>
      ${about.text && html`<p>${about.text}</p>`}
      ${about.lost && html`<p class="lost" role="note"><b>Lost:</b> ${about.lost}</p>`}
      ${about.content}
      ${about.fields.map((field) => html`<${Field} field=${field} />`)}
      <p class="buttons">
        <button type="button" onClick=${() => answer(null)}>${about.action ? "Cancel" : "Close"}</button>
        ${about.action && html`<button class=${about.lost ? "danger" : "primary"}>${about.action}</button>`}
      </p>
    </form></dialog>`;
}
