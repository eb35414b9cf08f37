// SPDX-License-Identifier: Apache-2.0
// What there is of a captured table outside its database: snapshots, states and current tables.

import { ago, bytes, button, h, number, problem, redraw, table, when } from "./parts.js";
import { get } from "./server.js";

/** A button that shows them; null for a feed without a capture. */
export function tablesView(view) {
  if (!view.troubles.capture) return null;
  const panel = h("div", { class: "tables" });
  const toggle = button("Snapshots and current tables", async () => {
    const isOpen = toggle.getAttribute("aria-expanded") === "true";
    toggle.setAttribute("aria-expanded", String(!isOpen));
    if (isOpen) panel.replaceChildren();
    else await draw(view, toggle, panel);
  }, { "aria-expanded": "false", "data-key": "tables" });
  return h("div", { class: "reveal" }, toggle, panel);
}

async function draw(view, toggle, panel) {
  panel.setAttribute("aria-busy", "true");
  redraw(panel, h("p", {}, "Loading"));
  let content;
  try {
    const found = await get("tables", view.names());
    content = [begun(found.begun), ...found.places.map(place), found.places.length || found.begun.length ? null : nothing()];
  } catch (error) {
    content = [problem(error.message, button("Reload", () => draw(view, toggle, panel), { "data-key": "again" }))];
  }
  // It may have been closed meanwhile.
  if (toggle.getAttribute("aria-expanded") === "true") redraw(panel, content);
  panel.setAttribute("aria-busy", "false");
}

const nothing = () => h("p", { class: "note" },
  "No task of a DAG that you may see takes snapshots of this feed or merges its tables, or its paths are known only in runs.");

/** Snapshots that the database knows of: they hold back purges. */
function begun(claims) {
  if (!claims.length) return null;
  return [
    table("Snapshots that have begun", ["Table", "State", "Begin", "By", "Expires without progress", "Into"], claims.map((claim) => [
      part(claim), state(claim.state, claim.state === "running" ? "running" : "missing"), aged(claim.begin, claim.age_seconds), claim.by,
      when(claim.expires_at), claim.into ? h("code", {}, claim.into) : "the feed's own events"])),
    claims.filter((claim) => claim.remedy).map((claim) => h("p", { class: "meaning careful" }, `${claim.table}: ${claim.remedy}`)),
  ];
}

/** A root of snapshots, states and current tables. */
function place(found) {
  const tasks = found.tasks.map((task) => `${task.dag_id}, ${task.task_id}`).join("; ");
  return h("section", { "aria-label": `Output ${found.path}` },
    h("div", { class: "head" }, h("code", {}, found.path), h("span", { class: "note" }, tasks)),
    found.error ? problem(found.error) : [current(found.current), bases(found.bases)]);
}

function current(tables) {
  if (!tables.length) return null;
  const whole = tables.filter((one) => !one.error);
  return [
    whole.length ? table("Current tables", ["Table", "Format", "Events until", "Rows", "Last merge", "Path"], whole.map((one) => [
      one.table, `${one.format}${one.has_history ? ", with history" : ""}`, aged(one.frontier, one.age_seconds), number(one.rows),
      h("span", { class: "moved" }, when(one.merged_at), one.merged_by ? h("span", { class: "note" }, one.merged_by) : null),
      h("code", {}, one.path)])) : null,
    failed(tables),
  ];
}

function bases(tables) {
  const rows = tables.flatMap((one) => one.first.map((base) => [one, base]));
  const isPart = tables.filter((one) => one.count > one.first.length);
  return [
    rows.length ? table("Snapshots and states", ["Table", "Kind", "Begin", "Exact from", "State", "Rows", "Size"], rows.map(([one, base]) => [
      part({ table: one.table, where: base.where }), base.kind, aged(base.begin, base.age_seconds), when(base.exact_from),
      state(base.problem ? "damaged" : "complete", base.problem ? "missing" : "complete"), base.rows === null ? "" : number(base.rows),
      base.size === null ? "" : bytes(base.size)])) : null,
    isPart.map((one) => h("p", { class: "note" }, `${one.table}: the newest ${number(one.first.length)} of ${number(one.count)}.`)),
    rows.filter(([, base]) => base.problem).map(([one, base]) => problem(`${one.table}: ${base.problem}`)),
    failed(tables),
    rows.length || tables.some((one) => one.error) ? null : h("p", { class: "note" }, "No snapshots or states."),
  ].flat();
}

const failed = (tables) => tables.filter((one) => one.error).map((one) => problem(`${one.table}: ${one.error}`));

const part = (one) => (one.where ? h("span", { class: "moved" }, one.table, h("span", { class: "note" }, `where ${one.where}`)) : one.table);

const state = (words, of) => h("span", { class: `as-${of}` }, words);

const aged = (time, seconds) => h("span", { class: "moved" }, when(time), h("span", { class: "note" }, ago(seconds)));
