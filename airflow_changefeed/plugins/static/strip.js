// SPDX-License-Identifier: Apache-2.0
// A consumer at one look: its last windows in the calendar's colours, and the age of its frontier.

import { clock, h, number, span, things } from "./parts.js";
import { STATES } from "./window.js";

const ORDER = ["complete", "missing", "running", "before", "open"];

/** The last windows of a consumer, if they are known; heard as their numbers by state. */
export function strip(consumer) {
  if (consumer.strip === null) return null;
  const { start, unit_seconds, states } = consumer.strip;
  const at = (index) => new Date(Date.parse(start) + index * unit_seconds * 1000).toISOString();
  const counts = ORDER.map((state) => [state, states.filter((one) => one === state).length]).filter(([, count]) => count);
  const words = `${number(states.length)} windows of ${span(unit_seconds)} from ${clock(at(0))} to ${clock(at(states.length))} UTC: `
    + counts.map(([state, count]) => `${number(count)} ${STATES[state]}`).join(", ");
  return [
    h("span", { class: "strip", role: "img", "aria-label": words, "data-states": states.join(" ") },
      states.map((state, index) => h("i", { class: state, title: `${clock(at(index))}: ${STATES[state]}` }))),
    consumer.strip.is_missing_before ? h("span", { class: "late" }, "older windows are missing") : null,
  ];
}

/** How old the frontier is; in the colour of trouble if windows are missing, in none if that is not known. */
export function age(consumer) {
  if (consumer.complete_until === null) return h("span", { class: "late" }, "nothing is complete yet");
  const colour = consumer.is_late === null ? null : consumer.is_late ? "late" : "good";
  // Its cursor says so; only a look at the files says what is there.
  const by = consumer.is_of_events ? "complete" : "complete by the cursor";
  const words = consumer.age_seconds < 1 ? `${by} until now` : `${by} until ${span(consumer.age_seconds)} ago`;
  return h("time", { class: colour, datetime: consumer.complete_until, title: `${clock(consumer.complete_until)} UTC` }, words);
}

/** What the last look at the files of an export's output found. */
export function files(consumer) {
  if (consumer.is_of_events) return null;
  if (consumer.files === null) return h("span", { class: "note" }, "files not checked yet");
  const { checked_at, missing, first } = consumer.files;
  const words = `files last checked at ${clock(checked_at)} UTC`;
  return missing
    ? h("span", { class: "late" }, `${words}: ${things(missing, "range")} of windows missing, the first from ${clock(first)} on`)
    : h("span", { class: "note" }, words);
}

/** The events before the beginning of an export that nobody has chosen; null if there are none. */
export function leftOut(consumer) {
  return consumer.before === null ? null : h("span", { class: "late" }, consumer.before.what);
}
