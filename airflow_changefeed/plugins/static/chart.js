// SPDX-License-Identifier: Apache-2.0
// Rows and lag of the windows in a calendar's time, as plain SVG.

import { button, clock, h, mark, number, problem, redraw, span, things } from "./parts.js";
import { get } from "./server.js";

const [WIDTH, HEIGHT, LEFT, TOP] = [860, 96, 84, 14];
const UNITS = [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

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
      figure("Rows per window", chart.points, (point) => point.rows, (value) => things(value, "row"), bar, ticks),
      figure("Lag: from the end of a window until it was exported", chart.points, (point) => point.lag_seconds, span, dot, spanTicks, chart.target_seconds));
    // On a phone it is wider than the screen; the newest windows are on the right.
    for (const one of panel.querySelectorAll("figure")) one.scrollLeft = one.scrollWidth;
  } catch (error) { redraw(panel, problem(error.message)); }
  panel.setAttribute("aria-busy", "false");
}

/** Three or four round numbers up to the largest value: 0, 200, 400, 600. */
function ticks(most) {
  const raw = Math.max(most, 1) / 3;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max([1, 2, 5, 10].find((each) => each * power >= raw) * power, 1);
  return [...Array(Math.ceil(most / step) + 1).keys()].map((index) => [index * step, number(index * step)]);
}

/** The same for lengths of time, in one unit. */
function spanTicks(most) {
  const [size, name] = UNITS.find(([each]) => most >= 2 * each) ?? UNITS.at(-1);
  return ticks(most / size).map(([value]) => [value * size, `${number(value)} ${name}`]);
}

function figure(title, points, valueOf, words, shape, ticksOf, target) {
  const known = points.map(valueOf).filter((value) => value !== null);
  const label = known.length ? `${title}: ${words(Math.min(...known))} to ${words(Math.max(...known))}, ${number(known.length)} windows` : `${title}: none`;
  const scale = ticksOf(Math.max(...known, target ?? 0, 0));
  const most = Math.max(scale.at(-1)[0], 1);
  const step = (WIDTH - LEFT) / points.length;
  const y = (value) => TOP + HEIGHT * (1 - value / most);
  const marks = points.map((point, index) => {
    const value = valueOf(point);
    if (value === null) return null;
    const element = shape(LEFT + index * step, y(value), step, TOP + HEIGHT - y(value));
    element.append(s("title", {}, `${clock(point.start)}: ${words(value)}`));
    return element;
  });
  const line = (value, kind) => s("line", { class: kind, x1: LEFT, x2: WIDTH, y1: y(value), y2: y(value) });
  const text = (content, properties, kind = "") => s("text", { class: kind, ...properties }, content);
  // Seven days, or eight weeks.
  const marked = points.map((point, index) => [point, index]).filter(([point, index]) => (points.length > 60 ? point.start.includes("T00:00:00") : index % 7 === 0));
  const times = marked.map(([point, index]) => text(mark(point.start).split(",")[0], { x: LEFT + index * step, y: TOP + HEIGHT + 16 }));
  return h("figure", {}, h("figcaption", {}, title, target === undefined || target === null ? null : `; dashed: the longest lag that max age allows, ${span(target)}`),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + TOP + 20}`, role: "img", "aria-label": label },
      ...scale.map(([value]) => line(value, "grid")), ...scale.map(([value, content]) => text(content, { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" })),
      ...marks, Number.isFinite(target) ? line(target, "target") : null, ...times));
}

const bar = (x, y, width, height) => s("rect", { class: "rows", x: x + width * 0.1, y, width: width * 0.8, height: Math.max(height, 1) });

const dot = (x, y, width) => s("circle", { class: "lag", cx: x + width / 2, cy: y, r: Math.min(width / 2, 3) });
