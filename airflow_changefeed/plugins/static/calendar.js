// SPDX-License-Identifier: Apache-2.0
// The calendar of a task's windows: hours by days, or days by weeks.

import { backfillDialog } from "./dialogs.js";
import { button, clock, h, number, problem, redraw, span, things } from "./parts.js";
import { get } from "./server.js";

const DAY = 86_400_000; // milliseconds
const WORDS = {
  complete: "complete", empty: "complete and empty", missing: "missing", running: "running",
  before: "before the consumer began", open: "not finished yet",
};
const MARKS = { complete: "", empty: "○", missing: "×", running: "…", before: "", open: "" };

/** Show the windows of a task in an element. */
export async function windowsView(view, use, element, end) {
  // A late answer must not overwrite that of a later request.
  const turn = `${Math.random()}`;
  element.dataset.turn = turn;
  element.setAttribute("aria-busy", "true");
  if (!element.childElementCount) redraw(element, h("p", {}, "Loading"));
  try {
    const names = { conn_id: view.connection.conn_id, dag_id: use.dag_id, task_id: use.task_id };
    const found = await get("windows", { ...names, end });
    if (element.dataset.turn !== turn) return;
    const again = (time) => windowsView(view, use, element, time);
    redraw(element, controls(found, again, end), grid(found), legend(found), missing(view, use, found, () => again(end)));
  } catch (error) {
    if (element.dataset.turn !== turn) return;
    redraw(element, problem(error.message,
      button("Try again", () => windowsView(view, use, element, end), { "data-key": "refresh" })));
  }
  element.setAttribute("aria-busy", "false");
}

/** Remove the windows, including those that are still loading. */
export function closeWindows(element) {
  element.dataset.turn = "";
  element.setAttribute("aria-busy", "false");
  element.replaceChildren();
}

function controls(found, show, end) {
  const later = new Date(Date.parse(found.end) + (Date.parse(found.end) - Date.parse(found.start)));
  return h("div", { class: "head" },
    button("Earlier", () => show(found.start), { "data-key": "earlier" }),
    h("span", { class: "note" }, `${clock(found.start)} to ${clock(found.end)} UTC, windows of ${span(found.unit_seconds)}`),
    button("Later", () => show(later.toISOString()), { disabled: found.end > found.now, "data-key": "later" }),
    button("Refresh", () => show(end), { "data-key": "refresh" }),
    found.shards_shown < found.shards
      ? h("span", { class: "note" }, `first ${number(found.shards_shown)} of ${number(found.shards)} shards`) : null);
}

function grid(found) {
  const length = found.cell_seconds * 1000;
  const isDays = length >= DAY;
  const row = isDays ? 7 * DAY : DAY;
  const lines = new Map();
  for (const cell of found.cells) {
    const at = Date.parse(cell.start);
    // Weeks begin on Monday; 1970 began on a Thursday.
    const line = isDays ? Math.floor((at + 3 * DAY) / row) * row - 3 * DAY : Math.floor(at / row) * row;
    if (!lines.has(line)) lines.set(line, []);
    lines.get(line).push(cell);
  }
  const columns = row / length;
  const heads = [...Array(columns).keys()].map((index) => isDays
    ? ["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"][index]
    : String(Math.floor((index * length) / 3_600_000)).padStart(2, "0"));
  return h("table", { class: `windows ${isDays ? "days" : "hours"}` },
    h("caption", {}, `Windows that ${found.dag_id} exports for ${found.consumer}`),
    h("thead", {}, h("tr", {}, h("td", {}), heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, [...lines].map(([line, cells]) => h("tr", {},
      h("th", { scope: "row" }, new Date(line).toISOString().slice(5, 10)), cells.map(square)))));
}

function square(cell) {
  const state = cell.running && cell.state !== "complete" && cell.state !== "empty" ? "running" : cell.state;
  const again = cell.running && state !== "running" ? ", running again" : "";
  const shards = cell.missing ? ` in ${things(cell.missing, "shard")}` : "";
  const words = `${clock(cell.start)}: ${WORDS[state]}${state === "missing" ? shards : ""}${again}`;
  return h("td", { class: `${state}${again ? " again" : ""}`, title: words, "data-start": cell.start, "data-state": state },
    h("span", { "aria-hidden": "true" }, MARKS[state]), h("span", { class: "unseen" }, words));
}

function legend(found) {
  const states = ["complete", "empty", "missing", "running", "before", "open"];
  return h("ul", { class: "legend", "aria-hidden": "true" }, states
    .filter((state) => state !== "running" || found.sees_runs)
    .map((state) => h("li", {}, h("span", { class: `key ${state}` }, MARKS[state]), WORDS[state])));
}

function missing(view, use, found, done) {
  if (!found.missing.length) return h("p", { class: "good" }, "No windows are missing.");
  return h("div", {},
    h("h5", {}, "Missing"),
    h("ul", { class: "missing-ranges" }, found.missing.map((range) => h("li", {},
      `${clock(range.start)} to ${clock(range.end)} UTC `,
      use.may_backfill ? button("Backfill", () => backfillDialog(use, range, done), {
        "aria-label": `Backfill ${clock(range.start)} to ${clock(range.end)}`,
        "data-key": `backfill ${range.start}` }) : null))));
}
