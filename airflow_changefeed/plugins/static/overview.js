// SPDX-License-Identifier: Apache-2.0
// All feeds of a connection: in one line how they do, then troubles, then what is late, then the others folded.

import { button, clock, focusKey, h, link, number, pager, problem, redraw, things } from "./parts.js";
import { ask, get } from "./server.js";
import { checkAll, lines } from "./strip.js";
import { counts, troubleList, troublesOf, unsearched } from "./troubles.js";

const FEEDS = 25; // of those that are folded, at a time
const FIRST = 50; // with troubles or late, that are not folded
const EXPLAINED = 25; // late feeds whose reasons are asked for
const FEW = 3; // that need not be folded

/** The section of a connection, which fills itself. */
export function overview(connection) {
  const body = h("div", { class: "feeds", "aria-busy": "true" }, h("p", {}, "Loading"));
  const found = h("p", { class: "note" });
  const headline = h("p", { class: "headline" });
  const unknown = h("div", {}); // why reasons are not known
  const checks = h("p", { class: "checks" });
  const show = async (checked = "", key = null) => {
    body.setAttribute("aria-busy", "true");
    redraw(unknown);
    try {
      const { at, feeds } = await get("feeds", { conn_id: connection.conn_id });
      found.textContent = `${things(feeds.filter(isThere).length, "feed")}, as of ${clock(at)} UTC`;
      const say = () => redraw(headline, words(feeds));
      say();
      redraw(checks, checkAll(connection, feeds, show), checked ? h("span", { class: "note", role: "status" }, checked) : null);
      if (key) focusKey(checks, key);
      const urgent = feeds.filter((feed) => feed.group !== "rest");
      const first = urgent.slice(0, FIRST).map((feed) => article(connection, feed, say));
      redraw(body, first.map(({ element }) => element),
        folded(connection, urgent.slice(FIRST), say, "more", (count) => `${things(count, "more feed")} with troubles or late`),
        folded(connection, feeds.filter((feed) => feed.group === "rest"), say, "rest", (count) => `${things(count, "feed")} without troubles`, feeds.length <= FEW));
      explain(connection, first, say, unknown);
    } catch (error) {
      found.textContent = "";
      redraw(checks, checked ? h("span", { class: "note", role: "status" }, checked) : null);
      redraw(body, problem(error.message, button("Reload", () => show(), { "data-key": `reload ${connection.conn_id}` })));
    }
    body.setAttribute("aria-busy", "false");
  };
  show();
  return h("section", { "aria-label": `Connection ${connection.conn_id}` },
    h("div", { class: "head" }, h("h2", {}, connection.conn_id), found, checks), headline, unknown, body);
}

/** Whether the database has it: others are only named by tasks. */
const isThere = (feed) => feed.kind !== null;

function words(feeds) {
  const there = feeds.filter(isThere);
  const consumers = feeds.flatMap((feed) => feed.consumers);
  const good = consumers.filter((one) => one.state === "complete" && !one.files?.missing).length;
  const running = consumers.filter((one) => one.state === "running").length;
  let first = there.every((feed) => feed.problem === null) ? "No consumers yet" : null;
  if (!there.length) first = "This database has no feeds yet: create one with set_up_feed, or with enable_capture to record a table's changes";
  if (consumers.length) {
    first = `${number(good)} of ${things(consumers.length, "consumer")} ${consumers.length === 1 || good === 1 ? "is" : "are"} up to date`
      + (running ? `, ${number(running)} running` : "");
  }
  const toCome = feeds.flatMap((feed) => feed.to_come).length;
  const unknown = consumers.filter((one) => one.strip === null).length;
  return [first, unknown ? `the windows of ${things(unknown, "consumer")} are unknown` : null, toCome ? `${things(toCome, "export has", "exports have")} not run yet` : null, counts(feeds)].filter(Boolean).join("; ");
}

// What only a search of the database finds is asked for afterwards.
function explain(connection, articles, say, unknown) {
  const said = (troubles) => JSON.stringify(troubles.map((one) => [one.consumer, one.code, one.count, one.what]));
  const late = articles.filter(({ feed }) => feed.consumers.some((one) => one.state === "missing")).slice(0, EXPLAINED);
  for (const { feed, element, draw } of late) {
    const list = element.querySelector(".consumers");
    ask(list, "reasons", { conn_id: connection.conn_id, feed: feed.feed }).then(({ troubles }) => {
      // It may have been drawn again meanwhile.
      if (!list.isConnected || said(troubles) === said(feed.troubles)) return;
      feed.troubles = troubles;
      draw();
      say();
    }).catch((error) => {
      if (!list.isConnected) return;
      // What did not answer in time answers no other feed either: said once.
      if (unknown && (error.status ?? 503) === 503) redraw(unknown, unsearched(error));
      else list.after(unsearched(error));
    });
  }
}

function article(connection, feed, say) {
  const body = h("div", {});
  const element = h("article", {}, title(connection, feed), body);
  const draw = () => {
    element.className = feed.group;
    redraw(body, feed.problem === null ? troubleList(troublesOf(feed, "")) : problem(feed.problem), lines(connection, feed, again));
  };
  const again = async () => {
    Object.assign(feed, await get("feed", { conn_id: connection.conn_id, feed: feed.feed, count: 1 }));
    draw();
    say();
    explain(connection, [shown], say);
  };
  const shown = { feed, element, draw };
  draw();
  return shown;
}

function title(connection, feed) {
  return h("h3", {}, link(feed.feed, { conn_id: connection.conn_id, feed: feed.feed }, { class: "feed", "data-key": `feed ${feed.feed}` }),
    h("span", { class: "kind" }, feed.kind ?? ""));
}

function folded(connection, feeds, say, key, words, isOpen = false) {
  if (!feeds.length) return null;
  const body = h("div", {});
  const show = (first) => {
    const shown = feeds.slice(first, first + FEEDS);
    redraw(body, shown.map((feed) => article(connection, feed, say).element), pager("Feeds", first, shown.length, feeds.length, FEEDS, show));
  };
  const element = h("details", { class: "rest", open: isOpen },
    h("summary", { "data-key": `${key} ${connection.conn_id}` }, words(feeds.length)), body);
  element.addEventListener("toggle", () => { if (element.open && !body.childElementCount) show(0); });
  return element;
}
