// SPDX-License-Identifier: Apache-2.0
// What somebody must resolve on the command line: gaps of a capture, and dead letters of consumers.

import { h, number, position, problem, table, things, when } from "./parts.js";

const command = (found) => h("p", {}, h("code", {}, found.command));

const more = (found) => (found.count > found.first.length
  ? h("p", { class: "note" }, `The first ${number(found.first.length)} of ${number(found.count)}.`) : null);

/** The open gaps, which stop the seal; null if there are none. */
export function gapsProblem(troubles) {
  if (troubles.error) return problem(`Could not check for open gaps and dead letters: ${troubles.error}`);
  const found = troubles.gaps;
  if (!found.count) return null;
  return problem(
    `${things(found.count, "open gap")}: the capture has missed changes, or may have. The feed cannot be sealed until somebody resolves this:`,
    command(found),
    table("Open gaps", ["Gap", "Found", "Table", "Reason"], found.first.map((gap) => [
      number(gap.number), when(gap.found_at), gap.table, gap.reason])),
    more(found));
}

/** A consumer's open dead letters; null if there are none. */
export function deadLettersProblem(consumer, troubles) {
  const found = troubles.dead_letters?.[consumer];
  if (!found) return null;
  return problem(
    `${things(found.count, "dead letter")}: events that the consumer parked. Its windows with them count as incomplete until each is retried or dropped:`,
    command(found),
    table("Open dead letters", ["Number", "Shard", "Event", "Attempts", "Parked", "Reason"], found.first.map((one) => [
      number(one.number), one.shard, position(one.event), number(one.attempts), when(one.parked_at), one.reason ?? "visible to users who may change the consumer"])),
    more(found));
}
