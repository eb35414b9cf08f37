// SPDX-License-Identifier: Apache-2.0
// What waits for a person to resolve it at the command line: gaps of a capture, and events that consumers parked.

import { h, number, place, problem, table, things, when } from "./parts.js";

const command = (found) => h("p", {}, h("code", {}, found.command));

const more = (found) => (found.count > found.first.length
  ? h("p", { class: "note" }, `The first ${number(found.first.length)} of ${number(found.count)}.`) : null);

/** Why nothing is sealed any more; null where nothing is the matter. */
export function gapsProblem(troubles) {
  if (troubles.error) return problem(`Whether something waits to be resolved is not known: ${troubles.error}`);
  const found = troubles.gaps;
  if (!found.count) return null;
  return problem(
    `${things(found.count, "open gap")}: changes passed the capture unseen, or may have. Nothing is sealed until somebody resolves it:`,
    command(found),
    table("Open gaps", ["Gap", "Found", "Table", "Reason"], found.first.map((gap) => [
      number(gap.number), when(gap.found_at), gap.table, gap.reason])),
    more(found));
}

/** The events that a consumer parked; null where there are none. */
export function lettersProblem(consumer, troubles) {
  const found = troubles.dead_letters?.[consumer];
  if (!found) return null;
  return problem(
    `${things(found.count, "dead letter")}: events that the consumer parked. Their windows count as incomplete for it until each is retried or dropped:`,
    command(found),
    table("Open dead letters", ["Letter", "Shard", "Event", "Attempts", "Parked", "Reason"], found.first.map((one) => [
      number(one.number), one.shard, place(one.event), number(one.attempts), when(one.parked_at), one.reason ?? "told to who may change the consumer"])),
    more(found));
}
