// SPDX-License-Identifier: Apache-2.0
// The calendar of a task's windows: hours by days, or days by weeks.

import { chartView } from "./chart.js";
import { backfillDialog } from "./dialogs.js";
import { button, clock, h, number, problem, redraw, span, things } from "./parts.js";
import { get } from "./server.js";
import { STATES, windowDialog } from "./window.js";

const DAY = 86_400_000; // milliseconds
const MARKS = { complete: "", empty: "○", missing: "×", running: "…", before: "", open: "" };

/**
 * Show the windows of a task in an element.
 *
 * `end` is the end of the calendar, or undefined for the newest; `at` is a time that it contains and marks.
 */
export async function windowsView(use, element, { end, at } = {}) {
  // A late answer must not overwrite that of a later request.
  const turn = `${Math.random()}`;
  element.dataset.turn = turn;
  element.setAttribute("aria-busy", "true");
  if (!element.childElementCount) redraw(element, h("p", {}, "Loading"));
  try {
    const found = await get("windows", { conn_id: use.conn_id, dag_id: use.dag_id, task_id: use.task_id, end, at });
    if (element.dataset.turn !== turn) return;
    const again = (place) => windowsView(use, element, place);
    redraw(element, found.begins_later ? problem(`The output ${found.begins_later}.`) : null, controls(found, again, { end, at }), grid(found, use, at), legend(found), chartView(use, found),
      missing(use, found, () => again({ end, at })));
  } catch (error) {
    if (element.dataset.turn !== turn) return;
    redraw(element, problem(error.message,
      button("Try again", () => windowsView(use, element, { end, at }), { "data-key": "refresh" })));
  }
  element.setAttribute("aria-busy", "false");
}

/** Remove the windows, including those that are still loading. */
export function closeWindows(element) {
  element.dataset.turn = "";
  element.setAttribute("aria-busy", "false");
  element.replaceChildren();
}

function controls(found, show, place) {
  const later = new Date(Date.parse(found.end) + (Date.parse(found.end) - Date.parse(found.start)));
  return h("div", { class: "head" },
    button("Earlier", () => show({ end: found.start }), { "data-key": "earlier" }),
    h("span", { class: "note" }, `${clock(found.start)} to ${clock(found.end)} UTC, windows of ${span(found.unit_seconds)}`),
    button("Later", () => show({ end: later.toISOString() }), { disabled: found.end > found.now, "data-key": "later" }),
    button("Refresh", () => show(place), { "data-key": "refresh" }),
    found.shards_shown < found.shards_total
      ? h("span", { class: "note" }, `first ${number(found.shards_shown)} of ${number(found.shards_total)} shards`) : null);
}

function grid(found, use, at) {
  const length = found.cell_seconds * 1000;
  const isDays = length >= DAY;
  const row = isDays ? 7 * DAY : DAY;
  const lines = new Map();
  for (const cell of found.cells) {
    const start = Date.parse(cell.start);
    // Weeks begin on Monday; 1970 began on a Thursday.
    const line = isDays ? Math.floor((start + 3 * DAY) / row) * row - 3 * DAY : Math.floor(start / row) * row;
    if (!lines.has(line)) lines.set(line, []);
    lines.get(line).push(cell);
  }
  const columns = row / length;
  const heads = [...Array(columns).keys()].map((index) => isDays
    ? ["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"][index]
    : String(Math.floor((index * length) / 3_600_000)).padStart(2, "0"));
  const marked = at === undefined ? undefined : found.cells.findLast((cell) => Date.parse(cell.start) <= Date.parse(at))?.start;
  const first = marked ?? found.cells.findLast((cell) => cell.state !== "open")?.start ?? found.cells[0].start;
  return h("table", { class: `windows ${isDays ? "days" : "hours"}`, on: { keydown: (event) => step(event, columns) } },
    h("caption", {}, `Windows that ${found.dag_id} exports for ${found.consumer}`),
    h("thead", {}, h("tr", {}, h("td", {}), heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, [...lines].map(([line, cells]) => h("tr", {},
      h("th", { scope: "row" }, new Date(line).toISOString().slice(5, 10)), cells.map((cell) => square(cell, use, { marked, first }))))));
}

// By keys: one stop of Tab for all windows, and arrows between them.
function step(event, columns) {
  const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
  const cells = [...event.currentTarget.querySelectorAll("td button")];
  const next = cells[cells.indexOf(document.activeElement) + by];
  if (by === undefined || !next) return;
  event.preventDefault();
  for (const cell of cells) cell.tabIndex = cell === next ? 0 : -1;
  next.focus();
}

function square(cell, use, { marked, first }) {
  const { state } = cell;
  const again = cell.running && state !== "running" ? ", running again" : "";
  const shards = cell.missing ? ` in ${things(cell.missing, "shard")}` : "";
  const words = `${clock(cell.start)}: ${STATES[state]}${state === "missing" ? shards : ""}${again}`;
  const isMarked = cell.start === marked;
  return h("td", {
    class: `${state}${again ? " again" : ""}${isMarked ? " marked" : ""}`, title: words, "data-start": cell.start, "data-state": state },
  button(MARKS[state], () => windowDialog(use, cell.start), {
    "aria-label": words, "aria-current": isMarked ? "true" : null, "data-key": `window ${cell.start}`,
    tabindex: cell.start === first ? 0 : -1 }));
}

function legend(found) {
  const states = ["complete", "empty", "missing", "running", "before", "open"];
  return h("ul", { class: "legend", "aria-hidden": "true" }, states
    .filter((state) => state !== "running" || found.sees_runs)
    .map((state) => h("li", {}, h("span", { class: `key ${state}` }, MARKS[state]), STATES[state])));
}

function missing(use, found, done) {
  if (!found.missing.length) return h("p", { class: "good" },
    `No windows are missing from ${clock(found.start)} to ${clock(found.end)} UTC.`);
  return h("div", {},
    h("h5", {}, "Missing"),
    h("ul", { class: "missing-ranges" }, found.missing.map((range) => h("li", {},
      `${clock(range.start)} to ${clock(range.end)} UTC `,
      use.may_backfill ? button("Backfill", () => backfillDialog(use, range, found.unit_seconds, done), {
        "aria-label": `Backfill ${clock(range.start)} to ${clock(range.end)}`,
        "data-key": `backfill ${range.start}` }) : null))));
}
