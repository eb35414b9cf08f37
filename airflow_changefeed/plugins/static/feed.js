// SPDX-License-Identifier: Apache-2.0
// A feed: its totals, and when opened its shards, consumers, cursors and leases.

import { createConsumerDialog, dropConsumerDialog, pauseDialog } from "./actions.js";
import { closeWindows, windowsView } from "./calendar.js";
import { historyDialog, moveDialog, open, revokeDialog } from "./dialogs.js";
import { age, files, leftOut, strip } from "./strip.js";
import { tablesView } from "./tables.js";
import { beginningProblem, captureFacts, deadLettersProblem, gapsProblem, lostProblem, openGaps } from "./troubles.js";
import { behind, button, counted, facts, focusKey, h, number, pager, position, problem, redraw, table, things, when } from "./parts.js";
import { get, post } from "./server.js";

const SHARDS = 25; // of a page

/** A feed in the list. */
export function feedArticle(connection, feed) {
  const detail = h("div", { class: "detail", hidden: true });
  const summary = h("div", {}, summed(feed));
  const gaps = h("div", {}, openGaps(feed));
  const toggle = button(feed.feed, async () => {
    const isOpen = detail.hidden;
    detail.hidden = !isOpen;
    toggle.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) await view.show(0);
  }, { class: "feed", "aria-expanded": "false", "data-key": `feed ${feed.feed}` });
  const view = new FeedView(connection, feed.feed, detail, summary, gaps);
  return h("article", {}, h("h3", {}, toggle, h("span", { class: "kind" }, feed.kind)), h("div", {}, gaps, summary), detail);
}

function summed(feed) {
  if (feed.problem !== null) return problem(feed.problem);
  const isPart = feed.shards_counted < feed.shard_count;
  const rest = isPart ? ` (first ${number(feed.shards_counted)} shards)` : "";
  return [
    facts([
      ["Shards", number(feed.shard_count)],
      ["Head", position(feed.head, "no events yet")],
      ["Sealed until", feed.sealed_until ? when(feed.sealed_until) : "not sealed"],
      ["Held for", feed.max_hold],
      ["Outbox", `${counted(feed.waiting, feed.waiting_or_more)}${rest}`],
      ["Resource version", number(feed.resource_version)],
    ]),
    h("ul", { class: "consumers" }, feed.consumers.map((consumer) => h("li", {},
      h("strong", {}, consumer.consumer), strip(consumer), h("span", {}, age(consumer)), files(consumer), leftOut(consumer),
      h("span", {}, behind(consumer), isPart ? rest : null),
      consumer.lost ? h("span", { class: "late" }, `lost in ${things(consumer.lost, "shard")}`) : null,
      consumer.held ? h("span", { class: "tag" }, `${number(consumer.held)} held`) : null))),
  ];
}

/** An opened feed. */
class FeedView {
  constructor(connection, feed, element, summary, gaps) {
    this.connection = connection;
    this.feed = feed;
    this.element = element;
    this.summary = summary;
    this.gaps = gaps;
    this.first = 0;
    this.waiters = {};
    this.troubles = {};
  }

  /** Parameters of every request. */
  names(more = {}) {
    return { conn_id: this.connection.conn_id, feed: this.feed, ...more };
  }

  async show(first = this.first) {
    this.first = first;
    this.element.setAttribute("aria-busy", "true");
    try {
      const [found, troubles] = await Promise.all([
        get("feed", this.names({ first, count: SHARDS })),
        get("troubles", this.names()).catch((error) => ({ error: error.message })),
      ]);
      this.troubles = troubles;
      if (found.consumers.some((one) => one.is_of_events)) this.waiters = (await get("waiters", this.names())).waiters;
      redraw(this.gaps, openGaps(found));
      if (found.shards_counted === found.shard_count) redraw(this.summary, summed(found));
      redraw(this.element,
        gapsProblem(this),
        captureFacts(this),
        tablesView(this),
        this.shards(found),
        found.consumers.map((consumer) => this.consumer(consumer, found)),
        found.consumers.length ? null : h("p", {}, "This feed has no consumers or exports yet."),
        this.connection.may_create_consumers ? h("p", {}, button("New consumer", () => createConsumerDialog(this, "create consumer"), {
          "data-key": "create consumer" })) : null,
        pager("Shards", first, found.shards.length, found.shard_count, SHARDS, (index) => this.show(index)));
    } catch (error) {
      redraw(this.element, problem(error.message, button("Try again", () => this.show(), { "data-key": "again" })));
    }
    this.element.setAttribute("aria-busy", "false");
  }

  /** Reload after a change or a refusal; the focus returns to the button that was pressed. */
  async reload(key) {
    await this.show();
    if (key) focusKey(this.element, key);
  }

  shards(found) {
    return table("Shards", ["Shard", "Head", "High-water time", "Outbox", "Purged up to"], found.shards.map((shard) => [
      shard.shard, position(shard.head, "no events"), when(shard.high_water), counted(shard.waiting, shard.waiting_or_more),
      position(shard.purged_upto, "nothing"),
    ]));
  }

  consumer(consumer, found) {
    const cursors = found.shards.flatMap((shard) => shard.cursors).filter((one) => one.consumer === consumer.consumer);
    const uses = this.connection.uses.filter((use) => use.feed === this.feed && use.consumer === consumer.consumer);
    const waiting = this.waiters[consumer.consumer] ?? [];
    // Two tasks may export for one consumer, each with its own windows.
    const calendars = uses.filter((use) => use.has_windows).map((use) => [use, h("div", { class: "calendar" })]);
    return h("section", { "aria-label": `Consumer ${consumer.consumer}` },
      h("div", { class: "head" },
        h("h4", {}, consumer.consumer),
        h("span", { class: "tag" }, consumer.is_of_events ? "consumer" : "export"),
        h("span", { class: "note" }, `resource version ${number(consumer.resource_version)}`),
        calendars.map(([use, calendar]) => [
          windowsButton(use, calendar, calendars), consumer.may_change ? filesButton(this, use) : null]),
        pauseButtons(this, uses),
        consumer.is_of_events && consumer.may_change ? button("Drop", () => dropConsumerDialog(this, consumer), {
          "aria-label": `Drop ${consumer.consumer}`, "data-key": `drop ${consumer.consumer}` }) : null,
        button("History", () => historyDialog(this, consumer.consumer), { "data-key": `history ${consumer.consumer}` })),
      waiting.length ? h("p", { class: "note" }, `Waiting for a shard: ${waiting.map((one) => one.name).join(", ")}`) : null,
      consumer.may_change ? null : h("p", { class: "note" }, "You have read-only access to this consumer."),
      lostProblem(cursors),
      beginningProblem(this, consumer, calendars.map(([use]) => use)),
      deadLettersProblem(consumer, this),
      calendars.map(([, calendar]) => calendar),
      table(`Cursors of ${consumer.consumer}`, ["Shard", "Cursor", "Behind", "Version", "Moved", "Lease"].concat(
        consumer.may_change ? ["Change"] : []), cursors.map((cursor) => this.cursor(cursor, consumer))));
  }

  cursor(cursor, consumer) {
    const cells = [
      cursor.shard,
      position(cursor.cursor),
      h("span", {}, cursor.is_lost ? h("span", { class: "late" }, "lost, ") : null, behind(cursor), cursor.ahead ? `; ${number(cursor.ahead)} complete after a gap` : null),
      number(cursor.resource_version),
      h("span", { class: "moved" }, when(cursor.moved_at), h("span", { class: "note" }, cursor.moved_by)),
      lease(cursor),
    ];
    if (consumer.may_change) cells.push(this.changes(cursor, consumer));
    return cells;
  }

  changes(cursor, consumer) {
    const of = `${cursor.consumer}, shard ${cursor.shard}`;
    const keys = { move: `move ${of}`, revoke: `revoke ${of}` };
    return h("span", { class: "actions" },
      button("Move", () => moveDialog(this, cursor, consumer, keys.move), {
        "aria-label": `Move the cursor of ${of}`, "data-key": keys.move }),
      cursor.lease_holder ? button("Revoke lease", () => revokeDialog(this, cursor, keys.revoke), {
        "aria-label": `Revoke the lease of ${of}`, "data-key": keys.revoke }) : null);
  }
}

/** For each DAG that runs it: pause, or resume. */
function pauseButtons(view, uses) {
  const dags = new Map();
  for (const use of uses.filter((one) => one.may_pause || one.is_paused)) dags.set(use.dag_id, [...(dags.get(use.dag_id) ?? []), use]);
  return [...dags].flatMap(([dag_id, own]) => {
    const key = `pause ${dag_id}`;
    return [
      own[0].is_paused ? h("span", { class: "late" }, `${dag_id} is paused`) : null,
      own[0].may_pause ? button(`${own[0].is_paused ? "Resume" : "Pause"} ${dag_id}`, () => pauseDialog(view, own, key), { "data-key": key }) : null,
    ];
  });
}

function lease(cursor) {
  if (!cursor.lease_holder) return h("span", { class: "none" }, "free");
  return h("span", { class: "moved" }, cursor.lease_holder,
    h("span", { class: "note" }, cursor.lease_is_held ? "until " : "expired ", when(cursor.lease_expires)));
}

/** Look at the names of all files of an output; the list of feeds then says what was missing. */
function filesButton(view, use) {
  const key = `check files ${use.dag_id} ${use.task_id}`;
  return button("Check files", async () => {
    try {
      await post("check_files", { conn_id: use.conn_id, dag_id: use.dag_id, task_id: use.task_id }, {});
      await view.reload(key);
    } catch (error) { open("Check files", problem(error.message)); }
  }, { "aria-label": `Check the files of ${use.dag_id}, ${use.task_id}`, "data-key": key });
}

function windowsButton(use, element, all) {
  const isOne = all.filter(([other]) => other.dag_id === use.dag_id).length === 1;
  const words = `Windows of ${use.dag_id}${isOne ? "" : `, ${use.task_id}`}`;
  const toggle = button(words, () => {
    const isOpen = toggle.getAttribute("aria-expanded") === "true";
    toggle.setAttribute("aria-expanded", String(!isOpen));
    if (isOpen) closeWindows(element);
    else windowsView(use, element);
  }, { "aria-expanded": "false", "data-key": `windows ${use.dag_id} ${use.task_id}` });
  return toggle;
}
