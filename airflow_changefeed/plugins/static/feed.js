// SPDX-License-Identifier: Apache-2.0
// A feed: what is wrong with it, its consumers, and behind Details its shards, cursors and leases.

import { createConsumerDialog, dropConsumerDialog, pauseDialog } from "./actions.js";
import { historyDialog, moveDialog, revokeDialog } from "./dialogs.js";
import { legend, state, strip, toCome, usesOf, waiting } from "./strip.js";
import { tablesView } from "./tables.js";
import { beginningProblem, captureFacts, deadLettersProblem, gapsProblem, lostProblem, troubleList, troublesOf, unsearched } from "./troubles.js";
import { button, counted, facts, focusKey, h, link, number, pager, position, problem, redraw, table, when } from "./parts.js";
import { ask, get } from "./server.js";

const SHARDS = 25; // of a page
/** Troubles that have a place of their own, with buttons. */
const PLACED = ["capture-gap", "capture-drift", "dead-letter", "events-before-beginning"];

/** A feed alone; with a consumer, that one is in sight. */
export async function feedView(connection, feed, consumer) {
  const element = h("div", { class: "detail" });
  const view = new FeedView(connection, feed, element);
  await view.show(0);
  const names = { conn_id: connection.conn_id, feed };
  if (consumer !== undefined) requestAnimationFrame(() => element.querySelector(`[data-consumer="${CSS.escape(consumer)}"]`)?.scrollIntoView());
  return h("article", { class: "alone" },
    h("nav", { class: "crumbs", "aria-label": "Where this is" }, link("All feeds", {}, { "data-key": "all feeds" }), ` / ${connection.conn_id}`),
    h("h2", {}, link(feed, names, { class: "feed", "data-key": `feed ${feed}` })), element);
}

/** An opened feed. */
class FeedView {
  constructor(connection, feed, element) {
    this.connection = connection;
    this.feed = feed;
    this.element = element;
    this.first = 0;
    this.waiters = {};
    this.troubles = {};
    this.opened = new Set();
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
      this.found = found;
      this.draw(found);
      if (found.consumers.some((one) => one.state === "missing")) this.explain(found);
    } catch (error) {
      redraw(this.element, problem(error.message, button("Reload", () => this.show(), { "data-key": "again" })));
    }
    this.element.setAttribute("aria-busy", "false");
  }

  draw(found) {
    const { first } = found;
    redraw(this.element,
      this.list(found.troubles),
      gapsProblem(this),
      captureFacts(this),
      tablesView(this),
      found.consumers.length ? legend() : null,
      found.consumers.map((consumer) => this.consumer(consumer, found)),
      h("ul", {}, toCome(this.connection, found, () => this.reload())),
      found.consumers.length || found.to_come.length ? null : h("p", {}, "This feed has no consumers or exports yet."),
      this.connection.may_create_consumers ? h("p", {}, button("New consumer", () => createConsumerDialog(this, "create consumer"), {
        "data-key": "create consumer" })) : null,
      this.details("the feed", facts([
        ["Kind", found.kind],
        ["Head", position(found.head, "no events yet")],
        ["Sealed until", found.sealed_until ? when(found.sealed_until) : "not sealed"],
        ["Held for", found.max_hold],
        ["Outbox", counted(found.waiting, found.waiting_or_more)],
        ["Resource version", number(found.resource_version)],
      ]), this.shards(found), pager("Shards", first, found.shards.length, found.shard_count, SHARDS, (index) => this.show(index))));
  }

  /** The troubles of a consumer, or of the feed itself, that have no place of their own. */
  list(troubles, of = "") {
    // Lost shards have one, too, if one of them is on this page of shards.
    const isLost = cursorsOf(this.found, of).some((cursor) => cursor.is_lost);
    const isPlaced = ({ code }) => PLACED.includes(code) || (code === "consumer-lost" && isLost);
    return troubleList(troublesOf({ troubles }, of).filter((one) => !isPlaced(one)), of);
  }

  /** What only a search of the database finds is shown when it is found; the page is there before. */
  async explain(found) {
    try {
      const { troubles } = await ask(this.element, "reasons", this.names());
      if (this.found !== found) return;
      for (const list of this.element.querySelectorAll(".troubles")) list.replaceWith(this.list(troubles, list.dataset.of));
    } catch (error) { if (this.found === found) this.element.prepend(unsearched(error)); }
  }

  /** Reload after a change or a refusal; the focus returns to the button that was pressed. */
  async reload(key) {
    await this.show();
    if (key) focusKey(this.element, key);
  }

  /** What only some people want to see; it stays open when the page is drawn again. */
  details(of, ...content) {
    const element = h("details", { open: this.opened.has(of) }, h("summary", { "data-key": `details ${of}` }, `Details of ${of}`), ...content);
    element.addEventListener("toggle", () => this.opened[element.open ? "add" : "delete"](of));
    return element;
  }

  shards(found) {
    return table("Shards", ["Shard", "Head", "High-water time", "Outbox", "Purged up to"], found.shards.map((shard) => [
      shard.shard, position(shard.head, "no events"), when(shard.high_water), counted(shard.waiting, shard.waiting_or_more),
      position(shard.purged_upto, "nothing"),
    ]));
  }

  consumer(consumer, found) {
    const cursors = cursorsOf(found, consumer.consumer);
    const uses = usesOf(this.connection, this.feed, consumer);
    const waiters = this.waiters[consumer.consumer] ?? [];
    const exports = uses.filter((use) => use.has_windows);
    const list = this.list(found.troubles, consumer.consumer);
    return h("section", { "aria-label": `Consumer ${consumer.consumer}`, "data-consumer": consumer.consumer },
      h("div", { class: "head" },
        h("h3", {}, link(consumer.consumer, this.names({ consumer: consumer.consumer }))),
        h("span", { class: "tag" }, consumer.is_of_events ? "consumer" : "export"),
        h("span", { class: "actions" },
          button("History", () => historyDialog(this, consumer.consumer), { "data-key": `history ${consumer.consumer}` }),
          consumer.is_of_events && consumer.may_change ? button("Drop consumer", () => dropConsumerDialog(this, consumer), {
            "aria-label": `Drop consumer ${consumer.consumer}`, "data-key": `drop ${consumer.consumer}` }) : null)),
      h("div", { class: "look" }, strip(consumer), state(found, consumer, uses, (key) => this.reload(key), list.querySelector("li:not(.note)") !== null)),
      list,
      dagGroups(this, uses),
      waiters.length ? h("p", { class: "note" }, `Waiting for a shard: ${waiters.map((one) => one.name).join(", ")}`) : null,
      consumer.may_change ? null : h("p", { class: "note" }, "You have read-only access to this consumer."),
      lostProblem(cursors, lostElsewhere(found, consumer.consumer)),
      beginningProblem(this, consumer, exports),
      deadLettersProblem(consumer, this),
      this.details(consumer.consumer, h("p", { class: "note" }, `Resource version ${number(consumer.resource_version)}`),
        table(`Cursors of ${consumer.consumer}`, ["Shard", "Cursor", "Behind", "Version", "Moved", "Lease"].concat(
          consumer.may_change ? ["Change"] : []), cursors.map((cursor) => this.cursor(cursor, consumer)))));
  }

  cursor(cursor, consumer) {
    const cells = [
      cursor.shard,
      position(cursor.cursor),
      h("span", {}, cursor.is_lost ? h("span", { class: "as-missing" }, "lost, ") : null, waiting(cursor), cursor.ahead ? `; ${number(cursor.ahead)} complete after a gap` : null),
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

/** The cursors of a consumer in the shards that are shown. */
const cursorsOf = (found, consumer) => found.shards.flatMap((shard) => shard.cursors).filter((one) => one.consumer === consumer);

/** How many shards, of those that the feed counts and that are not on this page, a consumer is lost in. */
function lostElsewhere(found, consumer) {
  const counted = found.troubles.find((one) => one.code === "consumer-lost" && one.consumer === consumer)?.count ?? 0;
  const here = { ...found, shards: found.shards.slice(0, Math.max(found.shards_counted - found.first, 0)) };
  return Math.max(counted - cursorsOf(here, consumer).filter((cursor) => cursor.is_lost).length, 0);
}

/** For each DAG that runs a consumer: its state, its windows, and what can be done with it. */
function dagGroups(view, uses) {
  const dags = new Map();
  for (const use of uses) dags.set(use.dag_id, [...(dags.get(use.dag_id) ?? []), use]);
  return [...dags].map(([dag_id, own]) => {
    const key = `pause ${dag_id}`;
    const [{ is_paused, may_pause }] = own;
    return h("div", { class: "dag", role: "group", "aria-label": `DAG ${dag_id}` },
      h("span", {}, "DAG ", h("strong", {}, dag_id)), h("span", { class: is_paused ? "as-missing" : "note" }, is_paused ? "is paused" : "is active"),
      own.filter((use) => use.has_windows).map((use) => [
        link(own.length > 1 ? `Windows of ${use.task_id}` : "Windows", { conn_id: use.conn_id, dag_id, task_id: use.task_id }, {
          class: "button", "aria-label": `Windows of ${dag_id}, ${use.task_id}`, "data-key": `windows ${dag_id} ${use.task_id}` })]),
      may_pause ? button(is_paused ? "Resume DAG" : "Pause DAG", () => pauseDialog(view, own, key), {
        "aria-label": `${is_paused ? "Resume" : "Pause"} DAG ${dag_id}`, "data-key": key }) : null);
  });
}

function lease(cursor) {
  if (!cursor.lease_holder) return h("span", { class: "none" }, "free");
  return h("span", { class: "moved" }, cursor.lease_holder,
    h("span", { class: "note" }, cursor.lease_is_held ? "until " : "expired ", when(cursor.lease_expires)));
}
