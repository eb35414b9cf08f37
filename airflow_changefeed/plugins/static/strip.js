// SPDX-License-Identifier: Apache-2.0
// A consumer at one look: its state, its last windows in the calendar's colours, and until when it is complete.

import { backfillDialog, open } from "./dialogs.js";
import { ago, button, clock, counted, day, h, link, mark, number, problem, span, things } from "./parts.js";
import { ask, post } from "./server.js";
import { hasFaults, troubleList, troublesOf, whyLate } from "./troubles.js";
import { STATES } from "./window.js";

const ORDER = ["complete", "missing", "running", "before", "open"];

/** What the colours of a strip mean. */
export const legend = (states = ORDER, marks = {}) => h("ul", { class: "legend", "aria-hidden": "true" }, states.map(
  (state) => h("li", {}, h("span", { class: `key ${state}` }, marks[state]), STATES[state])));

/** The consumers of a feed, each in a line with its troubles; `done` follows a look at files. */
export function lines(connection, feed, done) {
  return h("ul", { class: "consumers" }, feed.consumers.map((consumer) => h("li", { "data-state": consumer.state },
    h("strong", {}, link(consumer.consumer, { conn_id: connection.conn_id, feed: feed.feed, consumer: consumer.consumer })),
    strip(consumer) ?? h("span", {}),
    h("div", {}, troubleList(troublesOf(feed, consumer.consumer), consumer.consumer), state(feed, consumer, usesOf(connection, feed.feed, consumer), done, true)))), toCome(connection, feed, done));
}

/** Of how many shards the sums are, where they are not of all. */
const part = (feed) => (feed.shards_counted < feed.shard_count
  ? `, first ${number(feed.shards_counted)} of ${number(feed.shard_count)} shards` : "");

/** Exports that have not run yet: what waits for them, and a backfill of it. */
export function toCome(connection, feed, done) {
  return feed.to_come.map((consumer) => {
    const uses = usesOf(connection, feed.feed, { consumer });
    const words = h("span", {}, "has not run yet");
    const element = h("li", { class: "look", "data-consumer": consumer }, h("strong", {}, consumer),
      h("span", { class: "note" }, uses.map((use) => use.dag_id).join("; ")), h("div", {}, troubleList(troublesOf(feed, consumer), consumer), words));
    ask(element, "waiting", { conn_id: connection.conn_id, feed: feed.feed, consumer }).then(({ count, is_more, since, start, end }) => {
      if (!count) { words.textContent = "has not run yet, and no events wait for it"; return; }
      words.textContent = `has not run yet: ${counted(count, is_more)} ${count === 1 ? "event waits" : "events wait"} since ${day(since)}`;
      if (!start) return; // no window has ended yet
      words.append(" ", ...uses.filter((use) => use.may_backfill && use.has_windows).map((use) => button("Backfill",
        () => backfillDialog(use, { start, end }, use.unit_seconds ?? 3600, done), { class: "small", "aria-label": `Backfill ${feed.feed} by ${use.dag_id}`, "data-key": `backfill first ${use.dag_id} ${use.task_id}` })));
    }).catch(() => {});
    return element;
  });
}

/** The tasks that run a consumer or an export. */
export const usesOf = (connection, feed, consumer) => connection.uses.filter((use) => use.feed === feed && use.consumer === consumer.consumer);

/** In words: why it is late; until when it is complete, what waits, and what the last look at the files found. `isListed`: its troubles are beside it. */
export function state(feed, consumer, uses, done, isListed = false) {
  const isSaid = isListed && hasFaults(feed, consumer.consumer);
  return h("span", { class: "words" }, age(consumer, isSaid ? null : whyLate(feed, consumer)), h("span", {}, waiting(consumer) + part(feed)), files(consumer, uses, done, isSaid),
    consumer.held ? h("span", { class: "tag" }, `${number(consumer.held)} held`) : null);
}

/** How many events are after the cursors. */
export const waiting = (row) => (row.behind
  ? `${counted(row.behind, row.behind_or_more)} ${row.behind === 1 ? "event" : "events"} waiting` : "no events waiting");

/** The last windows of a consumer, if they are known; heard as their numbers by state. */
export function strip(consumer) {
  if (consumer.strip === null) return null;
  const { start, unit_seconds, states } = consumer.strip;
  const at = (index) => new Date(Date.parse(start) + index * unit_seconds * 1000).toISOString();
  const counts = ORDER.map((one) => [one, states.filter((each) => each === one).length]).filter(([, count]) => count);
  const words = `${number(states.length)} windows of ${span(unit_seconds)} from ${clock(at(0))} to ${clock(at(states.length))} UTC: `
    + counts.map(([one, count]) => `${number(count)} ${STATES[one]}`).join(", ");
  return h("span", { class: "strip" },
    h("span", { class: "cells", role: "img", "aria-label": words, "data-states": states.join(" ") },
      states.map((one, index) => h("i", { class: one, "data-tip": `${clock(at(index))}: ${STATES[one]}` }))),
    h("span", { class: "ends", "aria-hidden": "true" }, h("span", {}, mark(at(0))), h("span", {}, mark(at(states.length)))));
}

/** Until when a consumer is complete, in the colour of its state; in none if that is not known. */
function age(consumer, late) {
  const dot = h("span", { class: `dot ${consumer.state ?? "open"}`, "aria-hidden": "true" });
  const is = { complete: "up to date", running: "running", missing: late }[consumer.state];
  const before = consumer.strip?.is_missing_before && consumer.strip.states[0] !== "missing" ? "older windows are missing" : null;
  const words = h("span", { class: `as-${consumer.state}` }, [is, before].filter(Boolean).map((one) => `${one}, `));
  if (consumer.complete_until === null) return h("span", { class: "age" }, dot, words, "nothing is complete yet");
  // Its cursor says so; only a look at the files says what is there.
  const by = consumer.is_of_events ? "complete" : "complete by its cursor";
  return h("span", { class: "age" }, dot, words, h("time", { datetime: consumer.complete_until, title: `${clock(consumer.complete_until)} UTC` },
    `${by} until ${day(consumer.complete_until)} `, h("span", {}, `(${ago(consumer.age_seconds)})`)));
}

/** What the last look at the files of an export's output found, and a button that looks now. */
function files(consumer, uses, done, isSaid) {
  if (consumer.is_of_events) return null;
  const { checked_at, missing, first } = consumer.files ?? {};
  const words = checked_at ? `files checked ${day(checked_at)}` : "files not checked yet";
  const look = consumer.may_change ? uses.filter((use) => use.has_windows).map((use) => checkButton(use, done)) : [];
  return h("span", { class: missing && !isSaid ? "as-missing" : "note" },
    missing && !isSaid ? `${words}: ${things(missing, "range")} of windows missing, the first from ${day(first)} on ` : `${words} `, look);
}

/** Look at the names of all files of an output. */
const checkFiles = ({ conn_id, dag_id, task_id }) => post("check_files", { conn_id, dag_id, task_id }, {});

/** Look at the files of one output after the other; `done` takes what came of it. Whoever leaves the page ends it. */
export function checkAll(connection, feeds, done) {
  const uses = feeds.flatMap((feed) => feed.consumers.filter((one) => one.may_change && !one.is_of_events)
    .flatMap((one) => usesOf(connection, feed.feed, one).filter((use) => use.has_windows)));
  if (uses.length < 2) return null;
  const key = `check all files ${connection.conn_id}`;
  const words = h("span", { class: "note", role: "status" });
  const failed = [];
  let count = null; // of those looked at, while it goes on
  const press = button("Check all files", async () => {
    if (count !== null) { press.disabled = true; return; }
    count = 0;
    press.textContent = "Stop";
    while (count < uses.length && !press.disabled && press.isConnected) {
      const use = uses[count];
      count += 1;
      words.textContent = `Checking output ${number(count)} of ${number(uses.length)}, of ${use.dag_id}`;
      try { await checkFiles(use); } catch (error) {
        failed.push(`${use.dag_id}: ${error.message}`);
        if ([401, undefined].includes(error.status)) break; // so would all others
      }
    }
    if (!press.isConnected) return;
    await done([`Checked ${number(count - failed.length)} of ${things(uses.length, "output")}`, ...failed.slice(0, 3),
      failed.length > 3 ? `and ${number(failed.length - 3)} more` : null].filter(Boolean).join("; "), key);
  }, { class: "small", "data-key": key });
  return [press, words];
}

function checkButton(use, done) {
  const key = `check files ${use.dag_id} ${use.task_id}`;
  return button("Check now", async () => {
    try {
      await checkFiles(use);
      await done(key);
    } catch (error) { open("Check files", problem(error.message)); }
  }, { class: "small", "aria-label": `Check the files of ${use.dag_id}, ${use.task_id} now`, "data-key": key });
}
