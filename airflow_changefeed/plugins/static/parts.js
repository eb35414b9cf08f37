// SPDX-License-Identifier: Apache-2.0
// Elements and texts that the whole page uses.

/** Create an element; text is never read as HTML. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

/** A button; `data-key` finds it again after the page is redrawn. */
export function button(words, click, properties = {}) {
  return h("button", { type: "button", on: { click }, ...properties }, words);
}

/** An error message, announced at once. */
export const problem = (words, ...more) => h("div", { class: "problem", role: "alert" }, h("p", {}, words), ...more);

export const number = (value) => value.toLocaleString("en");

/** A size with its unit. */
export function bytes(value) {
  const names = ["B", "kB", "MB", "GB", "TB"];
  const index = value < 1000 ? 0 : Math.min(Math.floor(Math.log10(value) / 3), names.length - 1);
  return `${number(Number((value / 1000 ** index).toPrecision(3)))} ${names[index]}`;
}

/** A number of things. */
export const things = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;

/** A count that may have been cut short. */
export const counted = (value, orMore) => `${number(value)}${orMore ? " or more" : ""}`;

/** `2026-03-01 09:30:00`, UTC. */
export function clock(text) {
  if (!text) return "";
  return text.replace("T", " ").replace(/(\.\d+)?Z$/, "");
}

/** The same with milliseconds, if it has any: cursors are often at the last millisecond of an hour. */
export const exact = (text) => text.replace("T", " ").replace(/Z$/, "");

/** A time as an element; everything here is UTC. */
export const when = (text) => h("time", { datetime: text, title: `${clock(text)} UTC` }, clock(text));

const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];

/** `3 January 2013, 02:00`, UTC. */
export function day(text) {
  const [year, month, date] = text.slice(0, 10).split("-");
  return `${Number(date)} ${MONTHS[month - 1]} ${year}, ${text.slice(11, 16)}`;
}

/** `3 Jan, 02:00`, UTC, for marks along a line; the year where it is another one, or asked for. */
export function mark(text, withYear = false) {
  const [year, month, date] = text.slice(0, 10).split("-");
  const is = Number(year) === new Date().getUTCFullYear() && !withYear ? "" : ` ${year}`;
  return `${Number(date)} ${MONTHS[month - 1].slice(0, 3)}${is}, ${text.slice(11, 16)}`;
}

/** A time that has passed, in its largest unit: `13 years ago`. */
export function ago(seconds) {
  const units = [["year", 31_557_600], ["month", 2_629_800], ["day", 86_400], ["hour", 3600], ["minute", 60]];
  const [name, size] = units.find(([, each]) => seconds >= each) ?? [];
  return name ? `${things(Math.floor(seconds / size), name)} ago` : "just now";
}

/** A link within the page, by the parameters of its address; without any to all feeds. */
export function link(words, query, properties = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined);
  return h("a", { href: given.length ? `?${new URLSearchParams(given)}` : "./", ...properties }, words);
}

/** A length of time in its two largest units. */
export function span(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  let left = Math.round(seconds);
  const words = [];
  for (const [name, size] of units) {
    const amount = Math.floor(left / size);
    left -= amount * size;
    if (amount) words.push(`${amount} ${name}`);
    if (words.length === 2) break;
  }
  return words.join(" ") || "0 s";
}

/** A position in a feed: its time, and the ULID below it. */
export function position(value, none = "start") {
  if (!value) return h("span", { class: "none" }, none);
  return h("span", { class: "position" }, h("time", { datetime: value.time }, exact(value.time)), h("code", {}, value.ulid));
}

/** A table whose rows become blocks on a narrow screen. */
export function table(caption, heads, rows) {
  return h("table", { class: "stack" },
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, index) => h(
      index ? "td" : "th", { "data-label": heads[index], scope: index ? null : "row" }, cell))))));
}

/** Names with their values. */
export const facts = (pairs) => h("dl", {}, pairs.filter(([, value]) => value !== null)
  .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

/** Buttons for the pages of a list; null if there is only one page. */
export function pager(what, first, shown, total, size, go) {
  if (total <= size && !first) return null;
  const upto = first + shown;
  return h("nav", { class: "pager", "aria-label": what },
    button("Previous", () => go(Math.max(first - size, 0)), { disabled: !first, "data-key": `previous ${what}` }),
    h("span", {}, `${what} ${number(first + 1)} to ${number(upto)} of ${number(total)}`),
    button("Next", () => go(upto), { disabled: upto >= total, "data-key": `next ${what}` }));
}

/** Redraw an element, and restore the focus if its button still exists. */
export function redraw(element, ...children) {
  const key = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  element.replaceChildren(...children.flat(Infinity).filter(Boolean));
  if (key) focusKey(element, key);
}

/** Put the focus on the button of a key. */
export function focusKey(element, key) {
  [...element.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key)?.focus();
}
