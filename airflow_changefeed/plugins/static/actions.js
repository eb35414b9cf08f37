// SPDX-License-Identifier: Apache-2.0
// Changes of captures and consumers: what is seen, a note, and the button that makes the change.

import { actionDialog, field } from "./dialogs.js";
import { facts, h, number, position, things, when } from "./parts.js";
import { airflow, post } from "./server.js";

const textInput = (properties = {}) => h("input", { type: "text", autocomplete: "off", maxlength: 500, ...properties });

/** Resolve the open gaps of a feed's capture. */
export function resolveDialog(view, key) {
  const { capture, gaps } = view.troubles;
  const note = textInput({ required: true });
  actionDialog(`Resolve the gaps of ${view.feed}`, "Resolve the gaps", [
    facts([["Open gaps", number(gaps.count)], ["Version", number(capture.resource_version)]]),
    h("p", {}, "The feed can be sealed again. Changes that were missed stay missing: to record all rows again, use the command with --resync instead."),
    field("What was done about the gaps", note, "Stored with the gaps."),
  ], () => post("resolve_gaps", view.names(), { note: note.value, resource_version: capture.resource_version }), {
    seen: things(gaps.count, "open gap"), reload: () => view.reload(key) });
}

/** Capture the present columns of a capture's tables. */
export function refreshDialog(view, capture, key) {
  actionDialog(`Refresh capture ${view.feed}`, "Refresh the capture", [
    facts([["Version", number(capture.resource_version)]]),
    h("ul", { class: "drift" }, capture.drift.map((one) => h("li", {}, one))),
    h("p", {}, "From now on the present columns are recorded. Existing events keep their columns. An event of type ddl records the change."),
  ], () => post("refresh_capture", view.names(), { resource_version: capture.resource_version }), {
    seen: things(capture.drift.length, "difference"), reload: () => view.reload(key) });
}

/** Accept that an export does not have what lies before its beginning. */
export function acceptDialog(view, consumer, key) {
  const note = textInput({ required: true });
  actionDialog(`Accept the beginning of ${consumer.consumer}`, "Accept the beginning", [
    h("p", {}, `${consumer.before.what}.`),
    h("p", {}, "Nobody is warned of these events any more, and purges no longer keep them for this export. A backfill can still export them."),
    field("Why the events are not needed", note, "Stored in the history of the cursors."),
  ], () => post("accept_beginning", view.names({ consumer: consumer.consumer }), {
    note: note.value, resource_version: consumer.resource_version }), {
    seen: "a beginning that was not accepted", reload: () => view.reload(key) });
}

/** Retry or drop a dead letter. */
export function deadLetterDialog(view, consumer, letter, to, key) {
  const isDrop = to === "drop";
  const note = textInput({ required: true });
  actionDialog(`${isDrop ? "Drop" : "Retry"} dead letter ${letter.number} of ${consumer}`, isDrop ? "Drop the event" : "Retry the event", [
    facts([["Event", position(letter.event)], ["Attempts", number(letter.attempts)], ["Parked", when(letter.parked_at)],
      ["Version", number(letter.resource_version)]]),
    h("p", {}, isDrop ? `${consumer} will never handle this event.` : `The next run of ${consumer} handles this event again.`),
    isDrop ? field("Why the event is not needed", note, "Stored with the dead letter.") : null,
  ], () => post("resolve_dead_letter", view.names({ consumer, number: letter.number }), {
    to, resource_version: letter.resource_version, ...(isDrop ? { note: note.value } : {}) }), {
    careful: isDrop, seen: `${letter.state}, attempts: ${letter.attempts}`, reload: () => view.reload(key) });
}

/** Create a consumer of events. */
export function createConsumerDialog(view, key) {
  const name = textInput({ required: true, maxlength: 128, spellcheck: "false" });
  const start = textInput({ required: true, value: "latest", spellcheck: "false" });
  const attempts = h("input", { type: "number", min: 1, value: 10, required: true });
  const poison = h("select", {}, [["stop", "Stop"], ["park", "Park the event and continue"]].map(([value, words]) => h("option", { value }, words)));
  actionDialog(`New consumer of ${view.feed}`, "Create the consumer", [
    field("Name", name), field("Start", start, "earliest, latest, a time such as 2026-03-01T00:00:00Z, or a ULID"),
    field("Attempts", attempts), field("After the last attempt", poison),
    h("p", { class: "note" }, "A purge keeps an event until this consumer has acknowledged it or is dropped, or the event is older than the feed's max_hold."),
  ], () => post("create_consumer", view.names({ consumer: name.value }), {
    start: start.value, max_attempts: attempts.valueAsNumber, on_poison: poison.value }), {
    seen: "no such consumer", reload: () => view.reload(key) });
}

/** Drop a consumer of events. */
export function dropConsumerDialog(view, consumer) {
  const letters = view.troubles.dead_letters?.[consumer.consumer]?.count;
  actionDialog(`Drop ${consumer.consumer}`, "Drop the consumer", [
    facts([["Behind", number(consumer.behind)], ["Dead letters", letters ? number(letters) : null], ["Version", number(consumer.resource_version)]]),
    h("p", {}, "Its cursors, its history, its dead letters and its log are deleted. Purges no longer keep events for this consumer."),
  ], () => post("drop_consumer", view.names({ consumer: consumer.consumer }), { resource_version: consumer.resource_version }), {
    careful: true, seen: "its settings", reload: () => view.reload("create consumer") });
}

/** Pause the DAG that runs a consumer or an export, or let it go on; Airflow does it, as the user. */
export function pauseDialog(view, uses, key) {
  const [{ dag_id, is_paused }] = uses;
  const path = `dags/${encodeURIComponent(dag_id)}`;
  actionDialog(`${is_paused ? "Resume" : "Pause"} ${dag_id}`, is_paused ? "Resume the DAG" : "Pause the DAG", [
    h("p", {}, is_paused ? "Airflow schedules runs of this DAG again. Windows that it left out stay missing until you backfill them." : "Airflow starts no more runs of this DAG. Running runs continue."),
  ], async () => {
    const present = await airflow(path);
    for (const use of uses) use.is_paused = present.is_paused;
    if (present.is_paused !== is_paused) {
      throw new Error(`Nothing was changed. Somebody else ${present.is_paused ? "paused" : "resumed"} ${dag_id} after this page was loaded.`);
    }
    await airflow(path, { is_paused: !is_paused }, "PATCH");
    for (const use of uses) use.is_paused = !is_paused;
  }, { seen: "", reload: () => view.reload(key) });
}
