// SPDX-License-Identifier: Apache-2.0
// The page: connections and their feeds, in pages; and the window that its address names.

import { windowsView } from "./calendar.js";
import { feedArticle } from "./feed.js";
import { button, clock, h, pager, problem, redraw, things } from "./parts.js";
import { get, waitLongerThan } from "./server.js";
import { windowDialog } from "./window.js";

const FEEDS = 25; // in a page
const main = document.getElementById("main");
const status = document.getElementById("status");

async function load() {
  status.textContent = "Loading";
  try {
    const found = await get("connections");
    waitLongerThan(found.timeout_seconds);
    const [linked, show] = target(found.connections);
    const { may_create_consumers } = found;
    redraw(main, linked, found.connections.length ? found.connections.map((one) => section({ ...one, may_create_consumers })) : nothing());
    status.textContent = `${found.user}`;
    await show();
  } catch (error) {
    redraw(main, problem(error.message));
    status.textContent = "";
  }
}

/** The calendar that the page's address names, as links to windows do, and what shows it. */
function target(connections) {
  const { conn_id, dag_id, task_id, at, show } = Object.fromEntries(new URLSearchParams(location.search));
  if (task_id === undefined) return [null, () => {}];
  const uses = connections.find((one) => one.conn_id === conn_id)?.uses ?? [];
  const use = uses.find((one) => one.dag_id === dag_id && one.task_id === task_id && one.has_windows);
  if (!use) {
    return [problem(`The link names task ${task_id} of DAG ${dag_id} with connection ${conn_id}. The page has no windows of it: `
      + "it does not exist, you may not see it, or its feed, consumer or path is known only in runs."), () => {}];
  }
  const calendar = h("div", { class: "calendar" });
  const close = h("a", { href: "./" }, "Close");
  const article = h("section", { class: "linked", "aria-label": `Windows of ${dag_id}, ${task_id}` },
    h("div", { class: "head" }, h("h2", {}, `${dag_id}, ${task_id}`),
      h("p", { class: "note" }, `${use.feed}, ${use.consumer}, ${conn_id}`), close),
    calendar);
  return [article, async () => {
    await windowsView(use, calendar, { at });
    if (show === "window" && at) await windowDialog(use, at);
  }];
}

function nothing() {
  return h("p", {}, "There are no connections to show. Use a feed in a task of a DAG that you may see, or add a "
    + "connection to the option page_connections in section [changefeed] of Airflow's configuration.");
}

function section(connection) {
  const body = h("div", { class: "feeds", "aria-busy": "true" }, h("p", {}, "Loading"));
  const found = h("p", { class: "note" });
  const show = async (first) => {
    body.setAttribute("aria-busy", "true");
    try {
      const page = await get("feeds", { conn_id: connection.conn_id, first, count: FEEDS });
      found.textContent = `${things(page.total, "feed")}, as of ${clock(page.at)} UTC`;
      redraw(body,
        page.feeds.map((feed) => feedArticle(connection, feed)),
        pager("Feeds", first, page.feeds.length, page.total, FEEDS, show));
    } catch (error) {
      found.textContent = "";
      redraw(body, problem(error.message, button("Try again", () => show(first), { "data-key": "again" })));
    }
    body.setAttribute("aria-busy", "false");
  };
  show(0);
  return h("section", { "aria-label": `Connection ${connection.conn_id}` },
    h("div", { class: "head" }, h("h2", {}, connection.conn_id), found), body);
}

document.getElementById("reload").addEventListener("click", load);
load();
