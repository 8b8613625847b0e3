// Shell tasks of a session: run a command in its folder, see what it prints, answer it and end it.
import { html, useEffect, useRef, useState } from "./lib.js";
import { attempt, get, load, path, post, query } from "./api.js";
import { Text } from "./output.js";
import { plain } from "./ansi.js";
import { age, duration } from "./format.js";
import { TaskTerminal } from "./terminal.js";

const LOOK_MS = 1000;
const LISTED = 50;
const SHELL = "command -v bash > /dev/null && exec bash -i; exec sh -i";

const nameOf = (task) => (task.command === SHELL ? "Terminal" : html`<code>${plain(task.command).slice(0, 120)}</code>`);

const live = (task) => task.status === "running" || task.status === "paused";

/** A task on a terminal. The terminal itself reads what it prints. */
function TerminalTask({ task, close, look }) {
  const [ended, setEnded] = useState(null);
  const about = ended || task;
  return html`<section class="value" aria-label="Task">
    <header><h3>${nameOf(task)}</h3><span class="spacer"></span>
      ${!ended && html`<button class="danger" onClick=${() => attempt(() => post(path("shell", task.task_id, "cancel"), { wait: 0 }))}>End</button>`}
      <button class="quiet" onClick=${close}>Close</button></header>
    <${TaskTerminal} id=${task.task_id} ended=${(found) => { setEnded(found); look(); }} />
    <p class="muted">${about.status}${about.exit_code !== null ? `, exit code ${about.exit_code}` : ""}</p>
  </section>`;
}

/** One task with its text, read again while it runs. */
function Task({ id, close }) {
  const [task, setTask] = useState(null);
  const field = useRef(null);
  const [again, setAgain] = useState(0);
  useEffect(() => {
    let timer = null, gone = false;
    const look = async () => {
      const found = await load(() => get(query(path("shell", id), { wait: 0 })));
      if (gone || !found) return;
      setTask(found);
      if (live(found)) timer = setTimeout(look, LOOK_MS);
    };
    look();
    return () => { gone = true; clearTimeout(timer); };
  }, [id, again]);
  if (!task) return html`<p class="muted">Loading…</p>`;
  const act = (verb, body) => attempt(() => post(path("shell", id, verb), body)).then(() => setAgain((count) => count + 1));
  const send = (event) => { event.preventDefault(); act("input", { text: `${field.current.value}\n` }); field.current.value = ""; };
  const part = (stream) => task[stream] && html`<${Text} part=${{ stream, head: task[stream], tail: "", dropped: 0 }} />`;
  return html`<section class="value" aria-label="Task">
    <header><h3><code>${plain(task.command).slice(0, 200)}</code></h3><span class="spacer"></span>
      ${live(task) && html`<button class="quiet" onClick=${() => act("interrupt", { wait: 0 })}>Interrupt</button><button class="danger" onClick=${() => act("cancel", { wait: 0 })}>End</button>`}
      <button class="quiet" onClick=${close}>Close</button></header>
    <p class="muted">${task.status}${task.exit_code !== null ? `, exit code ${task.exit_code}` : ""}${task.signal ? `, ${task.signal}` : ""} · ${duration(task.execution_time)}</p>
    ${part("stdout")}${part("stderr")}
    ${task.notices.map((notice) => html`<p class="notice">${plain(notice)}</p>`)}
    ${task.status === "running" && html`<form class="answer" onSubmit=${send}><label>Input<input ref=${field} autocomplete="off" spellcheck="false" /></label><button>Send</button></form>`}
  </section>`;
}

export function Shell({ timeline }) {
  const [tasks, setTasks] = useState([]);
  const [chosen, setChosen] = useState(null);
  const field = useRef(null);
  const look = () => get(query(path("shell"), { limit: LISTED })).then((found) => setTasks(found.tasks.filter((task) => task.session_id === timeline.id)), () => {});
  useEffect(() => {
    look();
    const timer = setInterval(() => { if (!document.hidden) look(); }, LOOK_MS * 3);
    return () => clearInterval(timer);
  }, [timeline]);
  const begin = async (about) => {
    setChosen(null);
    const task = await attempt(() => post(path("shell"), { session_id: timeline.id, wait: 0, ...about }));
    if (!task) return;
    setChosen(task);
    look();
  };
  const run = (event) => {
    event.preventDefault();
    const command = field.current.value;
    if (!command.trim()) return;
    field.current.value = "";
    begin({ command, interactive: true });
  };
  return html`<div class="shell">
    <form class="answer" onSubmit=${run}><label>Command<input ref=${field} autocomplete="off" spellcheck="false" placeholder="ls -l" /></label><button class="primary">Run</button>
      <button type="button" onClick=${() => begin({ command: SHELL, pty: true, env: { PROMPT_DIRTRIM: "1" } })}>Open a terminal</button></form>
    ${chosen && (chosen.command === SHELL
      ? html`<${TerminalTask} key=${chosen.task_id} task=${chosen} close=${() => setChosen(null)} look=${look} />`
      : html`<${Task} key=${chosen.task_id} id=${chosen.task_id} close=${() => setChosen(null)} />`)}
    <table class="rows"><thead><tr><th scope="col">Command</th><th scope="col">State</th><th scope="col" class="number">Begun</th></tr></thead>
      <tbody>${tasks.map((task) => html`<tr key=${task.task_id}><th scope="row"><button class="link" onClick=${() => setChosen(task)}>${nameOf(task)}</button></th>
        <td>${task.status}${task.exit_code ? ` (${task.exit_code})` : ""}</td><td class="number">${age(task.created_at)}</td></tr>`)}</tbody></table>
    ${!tasks.length && html`<p class="empty">No shell command has run in this session.</p>`}
  </div>`;
}
