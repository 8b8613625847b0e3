// Numbers and times as people read them.
import { signal } from "./lib.js";

/** The time now, in seconds; it moves once a second, for what shows an age. */
export const now = signal(Date.now() / 1000);
setInterval(() => { if (!document.hidden) now.value = Date.now() / 1000; }, 1000);

export function bytes(count) {
  if (count === null || count === undefined) return "";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0, value = count;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

/** How long ago, in one word and a number: "now", "40 s", "3 min". */
export function age(time) {
  if (!time) return "";
  const seconds = Math.max(0, now.value - time);
  if (seconds < 3) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

/** Who ran a cell: the token's name, and the interface or what the client calls itself. */
export function byWhom(author) {
  if (!author) return "";
  const through = author.client || author.via;
  return author.name === "owner" ? through : `${author.name} · ${through}`;
}

// Made once: to make one takes longer than to draw a cell.
const clocks = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const moments = new Intl.DateTimeFormat([], { dateStyle: "short", timeStyle: "medium" });
const numbers = new Intl.NumberFormat("en");

export const clock = (time) => clocks.format(time * 1000);
export const moment = (time) => moments.format(time * 1000);
export const count = (number) => numbers.format(number);
export const percent = (share) => `${Math.round(share * 100)} %`;
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
