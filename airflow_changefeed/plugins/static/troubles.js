// SPDX-License-Identifier: Apache-2.0
// What somebody must resolve: in lines, and those with buttons: gaps of a capture, lost consumers, dead letters.

import { acceptDialog, deadLetterDialog, refreshDialog, resolveDialog } from "./actions.js";
import { backfillDialog } from "./dialogs.js";
import { button, clock, h, number, position, problem, table, things, when } from "./parts.js";

/** How many of many lost shards are named. */
const SHOWN = 5;

const command = (found) => h("p", {}, h("code", {}, found.command));

const more = (found) => (found.count > found.first.length
  ? h("p", { class: "note" }, `The first ${number(found.first.length)} of ${number(found.count)}.`) : null);

/** What counts as one trouble, as several, and what is said of a single consumer; of others their code says it. */
const NAMES = {
  "capture-gap": ["gap", "gaps", "gap in the capture"], "capture-trigger": ["missing trigger", "missing triggers"], "capture-drift": ["changed table", "changed tables"], "dead-letter": ["event parked", "events parked"],
  "dag-paused": ["DAG paused", "DAGs paused", "DAG paused"], "run-failed": ["failed run", "failed runs", "last run failed"], "no-run": ["consumer without runs", "consumers without runs", "no runs"],
  "windows-missing": ["window missing", "windows missing"], "window-missing": ["range of windows missing", "ranges of windows missing"], "window-lost": ["range of windows lost", "ranges of windows lost"],
  "consumer-lost": ["lost shard", "lost shards", "events lost"], "events-before-beginning": ["beginning not accepted", "beginnings not accepted", "beginning not accepted"],
  "consumer-failing": ["failing handler", "failing handlers", "handler fails"], "lease-stuck": ["stuck lease", "stuck leases"], "outbox-not-drained": ["outbox not drained", "outboxes not drained", "outbox not drained"],
  "not-set-up": ["feed not set up", "feeds not set up", "feed not set up"], "not-checked": ["consumer not checked", "consumers not checked", "not checked"],
};

const nameOf = (code, count) => {
  const [one, many] = NAMES[code] ?? [];
  return one ? `${number(count)} ${count === 1 ? one : many}` : code.replaceAll("-", " ") + (count > 1 ? ` (${number(count)})` : "");
};

/** What is counted: windows where their number is known, else ranges of them. */
const counting = ({ code, count, windows }) => (windows ? ["windows-missing", windows] : [code, count]);

/** A trouble in a few words, beside the consumer that has it. */
const cause = (one) => NAMES[one.code]?.[2] ?? nameOf(...counting(one));

const isFault = ({ severity }) => severity !== "note";

/** The troubles of a consumer; "" for those of the feed itself. */
export const troublesOf = (feed, consumer) => feed.troubles.filter((one) => (one.consumer ?? "") === consumer);

/** Whether a consumer has troubles of its own. */
export const hasFaults = (feed, consumer) => troublesOf(feed, consumer).some(isFault);

/** Why a consumer is late: by its own troubles, or those of its feed. */
export function whyLate(feed, { consumer, state }) {
  if (state !== "missing") return null;
  const own = troublesOf(feed, consumer).filter(isFault);
  return (own.length ? own : troublesOf(feed, "").filter(isFault)).map(cause).join(", ") || "late";
}

/** A sentence without ULIDs, which are behind Details, and with times and ranges as the page writes them. */
const plain = (text) => text.replace(/\b[0-7][0-9A-HJKMNP-TV-Z]{25} \((\S+Z)\)/g, "$1").replace(/ \[(\S+Z), (\S+Z)\)/g, ", $1 to $2")
  .split(/(\d{4}-\d\d-\d\dT\d\d:\d\d\S*?Z)/).map((one, index) => (index % 2 ? h("time", { datetime: one }, clock(one).slice(0, 16)) : one));

/** How many troubles of each kind feeds have; notes are none. */
export function counts(feeds) {
  const found = new Map();
  const dags = new Set(); // one may run many consumers
  for (const one of feeds.flatMap((feed) => feed.troubles).filter(isFault)) {
    if (dags.has(one.what)) continue;
    const [code, count] = counting(one);
    if (["dag-paused", "run-failed"].includes(code)) dags.add(one.what);
    found.set(code, (found.get(code) ?? 0) + count);
  }
  const unread = feeds.filter((feed) => feed.problem !== null).length;
  return [...[...found].map(([code, count]) => nameOf(code, count)), unread ? `${things(unread, "feed")} cannot be read` : null].filter(Boolean).join(", ");
}

/** Troubles in lines, each with what mends it. */
export const troubleList = (troubles, of = "") => h("ul", { class: "troubles", "data-of": of }, troubles.map((one) => h("li", { class: one.severity },
  h("details", {}, h("summary", {}, h("strong", {}, cause(one)), ": ", h("span", {}, plain(one.what))), h("p", {}, one.remedy)))));

/** That only a part of the troubles may be known. */
export const unsearched = (error) => h("p", { class: "note unsearched" }, `Could not find out why consumers are late: ${error.message}`);

/** What a capture records, and how its tables differ from that; null for a feed without a capture. */
export function captureFacts(view) {
  const { capture } = view.troubles;
  if (!capture) return null;
  const key = "refresh capture";
  return [
    h("p", { class: "note" }, `Capture of ${capture.tables.join(", ")}, ${capture.is_enabled ? "enabled" : "disabled"}. `
      + `When columns change: ${capture.on_ddl}.${capture.drift.length ? "" : " The captured columns match the tables."}`),
    capture.drift.length ? h("div", { class: "meaning careful" },
      h("p", {}, "The tables differ from the captured columns:"),
      h("ul", { class: "drift" }, capture.drift.map((one) => h("li", {}, one))),
      command(capture),
      capture.may_change ? button("Refresh the capture", () => refreshDialog(view, capture, key), { "data-key": key }) : null) : null,
  ];
}

/** The open gaps, which stop the seal; null if there are none. */
export function gapsProblem(view) {
  const { troubles } = view;
  if (troubles.error) return problem(`Could not check for open gaps and dead letters: ${troubles.error}`);
  const found = troubles.gaps;
  if (!found.count) return null;
  const key = "resolve gaps";
  return problem(
    `${things(found.count, "open gap")}: the capture has missed changes, or may have. The feed cannot be sealed until somebody resolves the gaps:`,
    command(found),
    table("Open gaps", ["Gap", "Found", "Table", "Reason"], found.first.map((gap) => [
      number(gap.number), when(gap.found_at), gap.table, gap.reason])),
    more(found),
    troubles.capture.may_change ? button("Resolve", () => resolveDialog(view, key), {
      "aria-label": `Resolve the gaps of ${view.feed}`, "data-key": key }) : null);
}

/** Cursors after which events were purged before the consumer read them; null if there are none. `others` are on other pages of shards. */
export function lostProblem(cursors, others) {
  const lost = cursors.filter((cursor) => cursor.is_lost);
  if (!lost.length) return null;
  return problem(
    `The consumer is lost in ${things(lost.length, "shard")}${others ? ` of this page and ${number(others)} of others` : ""}: events were purged before the consumer read them.`,
    lost.slice(0, SHOWN).map((cursor) => h("p", {}, `Shard ${cursor.shard}: ${cursor.remedy}`)),
    more({ count: lost.length, first: lost.slice(0, SHOWN) }));
}

/** Events before the beginning of an export that nobody has chosen; null if there are none. */
export function beginningProblem(view, consumer, uses) {
  if (consumer.before === null) return null;
  const range = { start: consumer.before.start, end: consumer.before.end };
  const key = `accept beginning ${consumer.consumer}`;
  return problem(consumer.before.what + ".", h("p", {}, consumer.before.remedy),
    uses.filter((use) => use.may_backfill).map((use) => button(`Backfill by ${use.dag_id}`,
      () => backfillDialog(use, range, use.unit_seconds ?? consumer.strip?.unit_seconds, () => view.reload()),
      { "data-key": `backfill beginning ${use.dag_id} ${use.task_id}` })),
    consumer.may_change ? button("Accept the beginning", () => acceptDialog(view, consumer, key), { "data-key": key }) : null);
}

/** A consumer's open dead letters; null if there are none. */
export function deadLettersProblem(consumer, view) {
  const found = view.troubles.dead_letters?.[consumer.consumer];
  if (!found) return null;
  return problem(
    `${things(found.count, "dead letter")}: events that the consumer parked. Windows with such events count as incomplete until each event is retried or dropped:`,
    command(found),
    table("Open dead letters", ["Number", "Shard", "Event", "Attempts", "Parked", "Reason"].concat(consumer.may_change ? ["Change"] : []),
      found.first.map((one) => [
        number(one.number), one.shard, position(one.event), `${number(one.attempts)}${one.state === "retry" ? ", will be retried" : ""}`,
        when(one.parked_at), one.reason ?? "visible to users who may change the consumer",
      ].concat(consumer.may_change ? [changes(view, consumer.consumer, one)] : []))),
    more(found));
}

function changes(view, consumer, letter) {
  return h("span", { class: "actions" }, ["retry", "drop"].map((to) => {
    const key = `${to} ${consumer} ${letter.number}`;
    const words = to === "drop" ? "Drop" : "Retry";
    return button(`${words} event`, () => deadLetterDialog(view, consumer, letter, to, key), {
      "aria-label": `${words} dead letter ${letter.number} of ${consumer}`, "data-key": key,
      disabled: to === letter.state });
  }));
}
