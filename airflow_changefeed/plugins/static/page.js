// SPDX-License-Identifier: Apache-2.0
// The page: connections and their feeds, in pages.

import { feedArticle } from "./feed.js";
import { button, clock, h, pager, problem, redraw, things } from "./parts.js";
import { get } from "./server.js";

const FEEDS = 25; // in a page
const main = document.getElementById("main");
const status = document.getElementById("status");

async function load() {
  status.textContent = "Loading";
  try {
    const found = await get("connections");
    redraw(main, found.connections.length ? found.connections.map(section) : nothing());
    status.textContent = `${found.user}`;
  } catch (error) {
    redraw(main, problem(error.message));
    status.textContent = "";
  }
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
