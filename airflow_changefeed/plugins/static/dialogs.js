// SPDX-License-Identifier: Apache-2.0
// Dialogs: show a change, its effect and its result. Escape closes them without a change.

import { button, clock, exact, facts, h, number, position, problem, redraw, table, things, when } from "./parts.js";
import { airflow, get, post } from "./server.js";

/** Open a dialog; the browser keeps the focus in it, and restores it at the end. */
export function open(title, ...content) {
  const id = `title-${Date.now()}`;
  const dialog = h("dialog", { "aria-labelledby": id }, h("h2", { id }, title), ...content);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** A button that closes a dialog. */
export const closer = (dialog, words = "Cancel") => button(words, () => dialog().close());

/** A field of a form, with its name and a hint. */
export function field(words, input, help) {
  const id = `field-${words.replace(/\W+/g, "-").toLowerCase()}`;
  input.id = id;
  if (help) input.setAttribute("aria-describedby", `${id}-help`);
  return h("div", { class: "field" }, h("label", { for: id }, words), input,
    help ? h("p", { class: "note", id: `${id}-help` }, help) : null);
}

// How a refusal shows the current state: of a cursor its position, of a lease its holder, of all else what the server says.
const OF_CURSOR = {
  version: "version",
  now: ({ row, present }) => (row ? row.cursor ? exact(row.cursor.time) : "start" : present),
  by: ({ row }) => (row ? `${row.moved_by}, ${clock(row.moved_at)} UTC` : null),
};
const OF_LEASE = {
  version: "fencing token",
  now: ({ row }) => `held by ${row?.lease_holder ?? "nobody"}`,
  by: () => null,
};
const OF_OTHERS = { version: "version", now: ({ present }) => present, by: () => null };

/** Show that somebody else was faster: what the user saw and the current state. */
function stale(error, seen, dialog, reload, kind) {
  const body = error.body;
  return problem("Nothing was changed. Somebody else changed it after this page was loaded.",
    facts([
      ["You saw", `${seen} (${kind.version} ${number(body.expected_version)})`],
      ["It is now", `${kind.now(body)} (${kind.version} ${number(body.present_version)})`],
      ["Changed by", kind.by(body)],
    ]),
    h("p", { class: "note" }, error.message),
    button("Reload", () => { dialog.close(); reload(); }, { class: "main" }));
}

function refused(error, seen, dialog, reload, kind = OF_CURSOR) {
  return error.isStale ? stale(error, seen, dialog, reload, kind) : problem(error.message);
}

/** Prevent a form from being sent twice. */
async function once(form, work) {
  const buttons = [...form.querySelectorAll("button")].filter((one) => !one.disabled);
  for (const one of buttons) one.disabled = true;
  try {
    await work();
  } finally {
    for (const one of buttons) one.disabled = false;
  }
}

/** Move a cursor: asks for the destination, shows the effect, then asks for confirmation. */
export function moveDialog(view, cursor, consumer, key) {
  const verb = consumer.is_of_events ? "consumed" : "exported";
  const names = view.names({ consumer: cursor.consumer, shard: cursor.shard });
  const version = { resource_version: cursor.resource_version };
  const seen = cursor.cursor ? exact(cursor.cursor.time) : "start";
  const to = h("input", { type: "text", required: true, autocomplete: "off", spellcheck: "false", list: "destinations" });
  const note = h("input", { type: "text", maxlength: 500, autocomplete: "off" });
  const answer = h("div", { class: "answer", "aria-live": "polite" });
  const reload = () => view.reload(key);
  const show = (error) => redraw(answer, refused(error, seen, dialog, reload));
  const move = () => once(form, async () => {
    try {
      await post("move", names, { to: to.value, note: note.value, ...version });
      dialog.close();
      await reload();
    } catch (error) { show(error); }
  });
  const form = h("form", { on: { submit: (event) => {
    event.preventDefault();
    once(form, async () => {
      try {
        redraw(answer, meaning(await get("move", { ...names, ...version, to: to.value }), verb, move));
        answer.querySelector("button").focus();
      } catch (error) { show(error); }
    });
  } } },
  facts([["Position", position(cursor.cursor)], ["Version", number(cursor.resource_version)]]),
  field("Move to", to, "earliest, latest, a time such as 2026-03-01T00:00:00Z, or a ULID"),
  h("datalist", { id: "destinations" }, ["earliest", "latest"].map((value) => h("option", { value }))),
  field("Why", note, "Stored in the cursor's history."),
  answer,
  h("div", { class: "buttons" }, closer(() => dialog), h("button", { type: "submit" }, "Preview")));
  // The preview is only valid for its destination.
  to.addEventListener("input", () => redraw(answer));
  const dialog = open(`Move the cursor of ${cursor.consumer}, shard ${cursor.shard}`, form);
  to.focus();
}

function meaning(found, verb, move) {
  const events = found.is_back ? found.again : found.skipped;
  const noun = things(events, "event");
  const words = found.is_back ? `Back: ${noun} will be ${verb} again.` : `Forward: ${noun} will be skipped and never ${verb}.`;
  return h("div", { class: found.is_back ? "meaning" : "meaning careful" },
    facts([["From", position(found.from)], ["To", position(found.to)]]),
    h("p", {}, words),
    found.skips_purged ? h("p", {}, "Purged events are skipped, too; they cannot be counted.") : null,
    found.forgotten ? h("p", {}, `${things(found.forgotten, "complete range")} after a gap will count as missing until exported again.`) : null,
    button("Move the cursor", move, { class: "main" }));
}

/**
 * Ask for a change: its form, and a button that makes it.
 *
 * `act` sends it; `seen` is what the user saw, for refusals of stale changes; `reload` follows a change.
 */
export function actionDialog(title, words, content, act, { seen, reload, careful = false, kind = OF_OTHERS }) {
  const answer = h("div", { class: "answer", "aria-live": "polite" });
  const form = h("form", { on: { submit: (event) => {
    event.preventDefault();
    once(form, async () => {
      try {
        await act();
        dialog.close();
        await reload();
      } catch (error) { redraw(answer, refused(error, seen, dialog, reload, kind)); }
    });
  } } }, ...content.filter(Boolean), answer,
  h("div", { class: "buttons" }, closer(() => dialog),
    h("button", { type: "submit", class: careful ? "main careful" : "main" }, words)));
  const dialog = open(title, form);
  form.querySelector("input, select")?.focus();
}

/** Revoke a lease. */
export function revokeDialog(view, cursor, key) {
  actionDialog(`Revoke the lease of ${cursor.consumer}, shard ${cursor.shard}`, "Revoke the lease", [
    facts([["Held by", cursor.lease_holder], [cursor.lease_is_held ? "Until" : "Expired", when(cursor.lease_expires)]]),
    h("p", {}, "The holder can no longer commit under this lease. Another process can take the shard at once."),
  ], () => post("revoke", view.names({ consumer: cursor.consumer, shard: cursor.shard }), { fencing_token: cursor.fencing_token }), {
    careful: true, kind: OF_LEASE, seen: `held by ${cursor.lease_holder}`, reload: () => view.reload(key.replace("revoke", "move")) });
}

/** Show the changes of a consumer's cursors. */
export async function historyDialog(view, consumer) {
  const body = h("div", { "aria-live": "polite" }, h("p", {}, "Loading"));
  const dialog = open(`History of ${consumer}`, body, h("div", { class: "buttons" }, closer(() => dialog, "Close")));
  dialog.classList.add("wide");
  try {
    const { changes } = await get("history", view.names({ consumer }));
    redraw(body, changes.length
      ? table("Newest first", ["When", "Shard", "From", "To", "By", "Why"], changes.map((one) => [
        when(one.at), one.shard, position(one.before), position(one.after), one.by, one.why ?? ""]))
      : h("p", {}, "No changes of this consumer's cursors are recorded."));
  } catch (error) { redraw(body, problem(error.message)); }
}

/** Start an Airflow backfill of a missing range, as the user. */
export async function backfillDialog(use, range, unit, done) {
  // Without a unit of its own the task exports the window of its run as a whole.
  const runs = { dag_id: use.dag_id, start: range.start, end: range.end, unit_seconds: use.unit_seconds ? null : unit };
  let dates;
  try {
    dates = await get("backfill", runs);
  } catch (error) {
    const dialog = open(`Backfill ${use.dag_id}`, problem(error.message), h("div", { class: "buttons" }, closer(() => dialog, "Close")));
    return;
  }
  if (dates.triggers) triggerDialog(use, range, dates, done);
  else intervalDialog(use, range, dates, done);
}

const missing = (range) => h("p", { class: "note" }, `Missing: ${clock(range.start)} to ${clock(range.end)} UTC`);

const paused = (use, dates) => (dates.is_paused
  ? h("p", { class: "as-missing" }, `${use.dag_id} is paused: the runs will wait until the DAG is resumed.`) : null);

/** Trigger runs of a DAG without intervals, each for a window that its params name. */
function triggerDialog(use, range, { triggers, ...dates }, done) {
  const last = triggers.at(-1).conf;
  const words = `Start ${things(triggers.length, "run")}`;
  actionDialog(`Run ${use.dag_id}`, words, [missing(range), paused(use, dates), h("div", { class: "meaning" },
    h("p", {}, `${things(triggers.length, "run")} with params window_start and window_end: `
      + `${clock(triggers[0].conf.window_start)} to ${clock(last.window_end)} UTC`))],
  async () => {
    try {
      for (const trigger of triggers) await airflow(`dags/${encodeURIComponent(use.dag_id)}/dagRuns`, trigger);
    } catch (error) {
      // Airflow names the constraint that two runs with one id violate, but no more.
      if (error.status === 409) throw new Error("Airflow has such a run already: somebody else started it after this page was loaded. Reload the windows.");
      throw error;
    }
  }, { seen: "", reload: done });
}

function intervalDialog(use, range, dates, done) {
  const from = h("input", { type: "text", required: true, spellcheck: "false", autocomplete: "off" });
  const upto = h("input", { type: "text", required: true, spellcheck: "false", autocomplete: "off" });
  const again = h("select", {}, [["completed", "Rerun all"], ["failed", "Rerun failed ones"], ["none", "Skip"]]
    .map(([value, words]) => h("option", { value }, words)));
  const most = h("input", { type: "number", min: 1, max: 100, value: 2, required: true });
  const answer = h("div", { class: "answer", "aria-live": "polite" });
  const request = () => ({ dag_id: use.dag_id, from_date: from.value, to_date: upto.value,
    reprocess_behavior: again.value, max_active_runs: Number(most.value), run_backwards: false, dag_run_conf: {} });
  const start = () => once(form, async () => {
    try {
      const made = await airflow("backfills", request());
      dialog.close();
      done(made);
    } catch (error) { redraw(answer, problem(error.message)); }
  });
  const check = () => once(form, async () => {
    try {
      const { backfills } = await airflow("backfills/dry_run", request());
      redraw(answer, planned(backfills, start));
      answer.querySelector("button")?.focus();
    } catch (error) { redraw(answer, problem(error.message)); }
  });
  const ask = h("button", { type: "submit" }, "Show the runs");
  const form = h("form", { on: { submit: (event) => { event.preventDefault(); check(); } } },
    missing(range),
    dates.are_partitions ? h("p", { class: "note" }, "Partition dates are in the schedule's time zone.") : null, paused(use, dates),
    field("First run", from, "Logical dates: the start of the intervals."), field("Last run", upto),
    field("Existing runs", again), field("Concurrent runs", most), answer,
    h("div", { class: "buttons" }, closer(() => dialog), ask));
  for (const input of [from, upto, again, most]) input.addEventListener("input", () => redraw(answer));
  [from.value, upto.value] = [dates.from_date, dates.to_date];
  const dialog = open(`Backfill ${use.dag_id}`, form);
  ask.focus();
}

function planned(runs, start) {
  if (!runs.length) return problem("No runs to start: all of them already exist, are running, or are not due yet.");
  const dates = runs.map((run) => run.logical_date ?? run.partition_date).filter(Boolean);
  return h("div", { class: "meaning" },
    h("p", {}, `${things(runs.length, "run")}: ${clock(dates[0] ?? "")}`
      + `${dates.length > 1 ? ` to ${clock(dates.at(-1))}` : ""} UTC`),
    button(`Start ${things(runs.length, "run")}`, start, { class: "main" }));
}
