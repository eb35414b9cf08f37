// SPDX-License-Identifier: Apache-2.0
// One window of a task: its bounds, shards, rows and manifests.

import { closer, open } from "./dialogs.js";
import { bytes, button, clock, facts, h, number, problem, redraw, table, things, when } from "./parts.js";
import { get } from "./server.js";

export const STATES = {
  complete: "complete", empty: "complete and empty", missing: "missing", running: "running",
  before: "before the consumer began", open: "not finished yet",
};

/** The address of a calendar at a time, or with `show` of that window. */
const windowUrl = (use, at, show) => `?${new URLSearchParams({
  conn_id: use.conn_id, dag_id: use.dag_id, task_id: use.task_id, at, ...show })}`;

/** Show the window that a time is in; the page's address names it as long as it is shown. */
export async function windowDialog(use, at) {
  const body = h("div", { "aria-live": "polite" });
  const link = h("a", {}, "Link to this window");
  const shown = { show: "window" };
  let start = at;
  const dialog = open("Window", body, h("div", { class: "buttons" }, link, closer(() => dialog, "Close")));
  dialog.classList.add("wide");
  dialog.addEventListener("close", () => history.pushState(null, "", windowUrl(use, start)));
  if (!new URLSearchParams(location.search).has("show")) history.pushState(null, "", windowUrl(use, at, shown));
  const title = dialog.querySelector("h2");
  dialog.querySelector(".buttons button").focus();
  const show = async (time) => {
    body.setAttribute("aria-busy", "true");
    if (!body.childElementCount) redraw(body, h("p", {}, "Loading"));
    try {
      const found = await get("window", { conn_id: use.conn_id, dag_id: use.dag_id, task_id: use.task_id, at: time });
      // Closed meanwhile: the address is that of something else.
      if (!dialog.isConnected) return;
      title.textContent = `${clock(found.start)} to ${clock(found.end)} UTC`;
      start = found.start;
      link.href = windowUrl(use, start, shown);
      history.replaceState(null, "", link.href);
      redraw(body, neighbours(found, show), content(found));
    } catch (error) {
      redraw(body, problem(error.message, button("Reload", () => show(time), { "data-key": "again" })));
    }
    body.setAttribute("aria-busy", "false");
  };
  await show(at);
}

function neighbours(found, show) {
  const before = new Date(Date.parse(found.start) - 1).toISOString();
  return h("div", { class: "head" },
    button("Previous window", () => show(before), { "data-key": "previous window" }),
    button("Next window", () => show(found.end), { disabled: found.end > found.now, "data-key": "next window" }));
}

function content(found) {
  const { state } = found;
  const manifests = found.shards.flatMap((shard) => shard.manifests.map((manifest) => [shard, manifest]));
  return [
    facts([
      ["Task", `${found.dag_id}, ${found.task_id}`],
      ["Feed", found.feed],
      ["Consumer", found.consumer],
      ["State", h("span", { class: "state" }, h("span", { class: `key ${state}`, "aria-hidden": "true" }), STATES[state],
        found.running && state !== "running" ? ", running again" : null)],
      ["Rows", number(found.rows)],
      ["Size", bytes(found.size)],
      ["Shards", found.shards.length < found.shards_total
        ? `first ${number(found.shards.length)} of ${number(found.shards_total)}` : number(found.shards_total)],
    ]),
    table("Shards of the window", ["Shard", "State", "Rows", "Files", "Attempt", "Written"], found.shards.flatMap((shard) => (
      shard.manifests.length ? shard.manifests : [null]).map((manifest) => [
      shard.shard, STATES[shard.state], manifest ? number(manifest.rows) : "", manifest ? number(manifest.files) : "",
      manifest ? number(manifest.attempt) : "", manifest ? when(manifest.made_at) : ""]))),
    manifests.length ? h("h3", {}, "Manifests") : h("p", { class: "note" }, "This window has no manifests."),
    ...manifests.map(([shard, manifest]) => manifestDetails(shard, manifest)),
  ];
}

function manifestDetails(shard, manifest) {
  const shown = manifest.content.files.length;
  return h("details", {},
    h("summary", {}, `Shard ${shard.shard}: ${things(manifest.rows, "row")} in ${things(manifest.files, "file")}`),
    h("p", {}, h("code", {}, manifest.path)),
    shown < manifest.files ? h("p", { class: "note" }, `The first ${number(shown)} of ${things(manifest.files, "file")}.`) : null,
    h("pre", { tabindex: 0, "aria-label": `Manifest of shard ${shard.shard}` }, JSON.stringify(manifest.content, null, 2)));
}
