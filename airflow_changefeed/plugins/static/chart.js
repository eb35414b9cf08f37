// SPDX-License-Identifier: Apache-2.0
// Rows and lag of the windows in a calendar's time, as plain SVG.

import { button, clock, h, number, problem, redraw, span } from "./parts.js";
import { get } from "./server.js";

const [WIDTH, HEIGHT, LEFT, TOP] = [860, 84, 84, 8];

function s(tag, properties = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, value);
  element.append(...children.filter(Boolean));
  return element;
}

/** A button that shows the chart of a calendar. */
export function chartView(use, found) {
  const panel = h("div", { class: "chart" });
  const toggle = button("Chart of rows and lag", async () => {
    const isOpen = toggle.getAttribute("aria-expanded") === "true";
    toggle.setAttribute("aria-expanded", String(!isOpen));
    if (isOpen) panel.replaceChildren();
    else await draw(use, found, panel);
  }, { "aria-expanded": "false", "data-key": `chart ${use.dag_id} ${use.task_id}` });
  return h("div", { class: "reveal" }, toggle, panel);
}

async function draw(use, found, panel) {
  panel.setAttribute("aria-busy", "true");
  try {
    const chart = await get("chart", {
      conn_id: use.conn_id, dag_id: use.dag_id, task_id: use.task_id, start: found.start, end: found.end });
    const isPart = chart.shards_shown < chart.shards_total;
    redraw(panel,
      isPart ? h("p", { class: "note" }, `First ${number(chart.shards_shown)} of ${number(chart.shards_total)} shards.`) : null,
      figure("Rows per window", chart.points, (point) => point.rows, number, bar),
      figure("Lag: from the end of a window until it was exported", chart.points, (point) => point.lag_seconds, span, dot));
    // On a phone it is wider than the screen; the newest windows are on the right.
    for (const one of panel.querySelectorAll("figure")) one.scrollLeft = one.scrollWidth;
  } catch (error) { redraw(panel, problem(error.message)); }
  panel.setAttribute("aria-busy", "false");
}

function figure(title, points, valueOf, words, mark) {
  const known = points.map(valueOf).filter((value) => value !== null);
  const most = Math.max(...known, 0);
  const label = known.length ? `${title}: ${words(Math.min(...known))} to ${words(most)}, ${number(known.length)} windows` : `${title}: none`;
  const step = (WIDTH - LEFT) / points.length;
  const marks = points.map((point, index) => {
    const value = valueOf(point);
    if (value === null) return null;
    const height = most ? (value / most) * HEIGHT : 0;
    const element = mark(LEFT + index * step, TOP + HEIGHT - height, step, height);
    element.append(s("title", {}, `${clock(point.start)}: ${words(value)}`));
    return element;
  });
  const line = (y) => s("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y, y2: y });
  const text = (y, content) => s("text", { x: LEFT - 6, y, "text-anchor": "end" }, content);
  return h("figure", {}, h("figcaption", {}, title),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + TOP + 20}`, role: "img", "aria-label": label },
      line(TOP), line(TOP + HEIGHT), text(TOP + 8, words(most)), text(TOP + HEIGHT, "0"),
      ...marks,
      s("text", { x: LEFT, y: TOP + HEIGHT + 16 }, clock(points[0].start)),
      s("text", { x: WIDTH, y: TOP + HEIGHT + 16, "text-anchor": "end" }, clock(points.at(-1).start))));
}

const bar = (x, y, width, height) => s("rect", { class: "rows", x: x + width * 0.1, y, width: width * 0.8, height: Math.max(height, 1) });

const dot = (x, y, width) => s("circle", { class: "lag", cx: x + width / 2, cy: y, r: Math.min(width / 2, 3) });
