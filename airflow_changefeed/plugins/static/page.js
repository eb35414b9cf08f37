// SPDX-License-Identifier: Apache-2.0
// The page: its address says what is shown. All feeds, one feed, or the windows of a task.

import { calendarView } from "./calendar.js";
import { feedView } from "./feed.js";
import { overview } from "./overview.js";
import { h, problem, redraw } from "./parts.js";
import { get, waitLongerThan } from "./server.js";
import { legend } from "./strip.js";

const main = document.getElementById("main");
const status = document.getElementById("status");
let turn = 0;

/** Show what the address names; a late answer never overwrites that of a later address. */
async function load() {
  const own = ++turn;
  for (const dialog of document.querySelectorAll("dialog")) dialog.remove();
  status.textContent = "Loading";
  main.setAttribute("aria-busy", "true");
  try {
    const found = await get("connections");
    if (own !== turn) return;
    waitLongerThan(found.timeout_seconds);
    const place = Object.fromEntries(new URLSearchParams(location.search));
    document.title = [place.feed ?? place.dag_id, "Changefeed"].filter(Boolean).join(", ");
    let dialog = () => {};
    const shown = await view(found, place, (opening) => { dialog = opening; });
    if (own !== turn) return;
    redraw(main, shown);
    dialog();
    status.textContent = found.user;
  } catch (error) {
    if (own !== turn) return;
    redraw(main, problem(error.message));
    status.textContent = "";
  }
  main.setAttribute("aria-busy", "false");
}

function view(found, { conn_id, feed, consumer, dag_id, task_id, at, end, show }, afterwards) {
  const connections = found.connections.map((one) => ({ ...one, may_create_consumers: found.may_create_consumers }));
  if (dag_id !== undefined) return calendarView(connections, { conn_id, dag_id, task_id, at, end, show }, afterwards);
  if (feed === undefined) return connections.length ? [legend(), ...connections.map(overview)] : nothing();
  const connection = connections.find((one) => one.conn_id === conn_id);
  return connection ? feedView(connection, feed, consumer) : problem(`The page has no connection ${conn_id}, or you may not see it.`);
}

function nothing() {
  return h("p", {}, "There are no connections to show. Use a feed in a task of a DAG that you may see, or add a "
    + "connection to the option page_connections in section [changefeed] of Airflow's configuration.");
}

// Links within the page work without reloading it; Back and Forward do the same.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='?'], a[href='./']");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  history.pushState(null, "", link.href);
  load().then(() => scrollTo(0, 0));
});
window.addEventListener("popstate", load);
document.getElementById("reload").addEventListener("click", load);
load();
