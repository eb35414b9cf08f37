// SPDX-License-Identifier: Apache-2.0
// The calendar of what is exported for a consumer: hours by days, or days by weeks.

import { chartView } from "./chart.js";
import { backfillDialog } from "./dialogs.js";
import { button, clock, h, link, mark, number, problem, redraw, span, things } from "./parts.js";
import { get } from "./server.js";
import { legend } from "./strip.js";
import { STATES, windowDialog } from "./window.js";

const DAY = 86_400_000; // milliseconds
const DAYS = ["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"];
const MARKS = { complete: "", empty: "○", missing: "×", running: "…", before: "", open: "" };

/**
 * The windows of the task that the page's address names.
 *
 * `end` is the end of the calendar, or undefined for the newest; `at` is a time that it contains and marks.
 * `afterwards` takes what opens its dialog, once it is shown.
 */
export async function calendarView(connections, { conn_id, dag_id, task_id, at, end, show }, afterwards) {
  const known = connections.flatMap((one) => one.uses);
  const named = known.filter((one) => one.has_windows && one.dag_id === dag_id
    && (task_id ?? one.task_id) === one.task_id && (conn_id ?? one.conn_id) === one.conn_id);
  const [use] = named;
  if (!use) return withoutWindows(known, { conn_id, dag_id, task_id });
  // Several DAGs may export for one consumer into one place; their windows are the same.
  const uses = known.filter((one) => one.has_windows && ["conn_id", "feed", "consumer"].every((name) => one[name] === use[name])
    && one.path.replace(/\/+$/, "") === use.path.replace(/\/+$/, ""));
  const others = named.filter((one) => !uses.includes(one));
  const calendar = h("div", { class: "calendar" });
  const names = { conn_id: use.conn_id, feed: use.feed };
  await fill(use, uses, calendar, { at, end });
  if (show === "window" && at) afterwards(() => windowDialog(use, at));
  return h("article", { class: "alone" },
    h("nav", { class: "crumbs", "aria-label": "Where this is" }, link("All feeds", {}, { "data-key": "all feeds" }), ` / ${use.conn_id} / `,
      link(use.feed, names, { "data-key": `feed ${use.feed}` }), " / ", link(use.consumer, { ...names, consumer: use.consumer })),
    h("h2", {}, `Windows of ${use.consumer}`),
    h("p", { class: "note" }, `Exported by ${uses.map((one) => `${one.dag_id}, ${one.task_id}`).join("; ")}`),
    others.length ? h("p", {}, "Other windows of this DAG: ", others.map((one) => [link(one.task_id, address(one)), " "])) : null,
    calendar);
}

/** What a DAG has instead: links to its feeds; of a task that a link names, why there is nothing. */
function withoutWindows(known, { conn_id, dag_id, task_id }) {
  const all = h("p", {}, link("All feeds", {}));
  if (task_id !== undefined && conn_id !== undefined) {
    return [all, problem(`The link names task ${task_id} of DAG ${dag_id} with connection ${conn_id}. The page has no windows of that task: `
      + "the task does not exist, you may not see it, or its feed, consumer or path is known only in runs.")];
  }
  const uses = known.filter((one) => one.dag_id === dag_id && (task_id ?? one.task_id) === one.task_id && one.feed);
  return [all, h("p", {}, `${task_id === undefined ? "" : `Task ${task_id} of `}DAG ${dag_id} exports no windows that are known before it runs.`),
    h("ul", {}, uses.map((one) => h("li", {}, link(`${one.task_id}: ${one.feed}`, { conn_id: one.conn_id, feed: one.feed, consumer: one.consumer ?? undefined }))))];
}

const address = (use, more = {}) => ({ conn_id: use.conn_id, dag_id: use.dag_id, task_id: use.task_id, ...more });

async function fill(use, uses, element, place) {
  element.setAttribute("aria-busy", "true");
  const again = () => fill(use, uses, element, place);
  try {
    const found = await get("windows", address(use, place));
    redraw(element, found.begins_later ? problem(`${found.begins_later[0].toUpperCase()}${found.begins_later.slice(1)}.`) : null, controls(found, use), grid(found, use, place.at),
      legend(Object.keys(MARKS).filter((state) => state !== "running" || found.sees_runs), MARKS), chartView(use, found), missing(uses, found, again));
  } catch (error) {
    redraw(element, problem(error.message, button("Reload", again, { "data-key": "again" })));
  }
  element.setAttribute("aria-busy", "false");
}

function controls(found, use) {
  const later = new Date(Date.parse(found.end) + (Date.parse(found.end) - Date.parse(found.start)));
  return h("div", { class: "head" },
    link("Earlier", address(use, { end: found.start }), { class: "button", "data-key": "earlier" }),
    h("span", { class: "note" }, `${clock(found.start)} to ${clock(found.end)} UTC, windows of ${span(found.unit_seconds)}`),
    found.end > found.now ? null : link("Later", address(use, { end: later.toISOString() }), { class: "button", "data-key": "later" }),
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
    ? DAYS[index]
    : String(Math.floor((index * length) / 3_600_000)).padStart(2, "0"));
  const marked = at === undefined ? undefined : found.cells.findLast((cell) => Date.parse(cell.start) <= Date.parse(at))?.start;
  const first = marked ?? found.cells.findLast((cell) => cell.state !== "open")?.start ?? found.cells[0].start;
  return h("table", { class: `windows ${isDays ? "days" : "hours"}`, on: { keydown: (event) => step(event, columns) } },
    h("caption", {}, `Windows that ${found.dag_id} exports for ${found.consumer}`),
    h("thead", {}, h("tr", {}, h("td", {}), heads.map((head) => h("th", { scope: "col" }, head)), h("th", { scope: "col", class: "total" }, "Complete"))),
    h("tbody", {}, [...lines].map(([line, cells]) => h("tr", {},
      h("th", { scope: "row" }, date(line)), cells.map((cell) => square(cell, use, { marked, first })), h("td", { class: "total" }, total(cells))))));
}

/** `Sa 28 Nov 2026`; on a phone without month and year, which stand above the calendar. */
function date(line) {
  const words = mark(new Date(line).toISOString(), true).split(",")[0].split(" ");
  return [`${DAYS[(new Date(line).getUTCDay() + 6) % 7]} ${words[0]} `, h("span", { class: "wide" }, words.slice(1).join(" "))];
}

/** How many of the windows of a line that are over, and that the consumer has to have, are complete. */
function total(cells) {
  const over = cells.filter((cell) => !["before", "open"].includes(cell.state));
  return over.length ? `${over.filter((cell) => ["complete", "empty"].includes(cell.state)).length} of ${over.length}` : "";
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

function missing(uses, found, done) {
  const [use] = uses;
  const jumps = h("p", { class: "head" },
    [["missing_before", "Previous missing window"], ["missing_after", "Next missing window"]].map(([name, words]) => (found[name]
      ? link(words, address(use, { at: found[name] }), { class: "button", "data-key": name }) : null)));
  const others = found.missing_before || found.missing_after;
  if (!found.missing.length) {
    const isPart = found.shards_shown < found.shards_total;
    const where = isPart ? ` in the first ${number(found.shards_shown)} of ${number(found.shards_total)} shards` : "";
    return h("div", {}, h("p", { class: others || isPart ? null : "as-complete" },
      `No windows are missing in these days${where}${others ? ", but other windows are." : "."}`), jumps);
  }
  const able = uses.filter((one) => one.may_backfill);
  return h("div", {},
    h("h3", {}, "Missing"), jumps,
    h("ul", { class: "missing-ranges" }, found.missing.map((range) => h("li", {},
      `${clock(range.start)} to ${clock(range.end)} UTC `,
      able.map((one, index) => button(able.length > 1 ? `Backfill by ${one.dag_id}` : "Backfill", () => backfillDialog(one, range, found.unit_seconds, done), {
        "aria-label": `Backfill ${clock(range.start)} to ${clock(range.end)} by ${one.dag_id}`,
        "data-key": `backfill ${range.start}${index ? ` ${one.dag_id}` : ""}` }))))));
}
