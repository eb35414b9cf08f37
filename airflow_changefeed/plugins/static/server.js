// SPDX-License-Identifier: Apache-2.0
// What the page asks: its own server, and Airflow's API, both as the user who is logged in.

const TIMEOUT = 30_000; // milliseconds; the server itself gives a database ten seconds

/** What a server refused: its words, and what it said besides. */
export class Refusal extends Error {
  constructor(status, body) {
    super(wordsOf(status, body));
    this.status = status;
    this.body = body;
  }

  /** Somebody else has changed it since this page was loaded. */
  get isStale() {
    return this.status === 409 && this.body?.error === "StaleVersionError";
  }
}

function wordsOf(status, body) {
  if (status === 401) return "Your session has ended: log in to Airflow again, then reload this page.";
  const detail = body?.detail;
  if (typeof detail === "string") return detail;
  if (Array.isArray(detail)) return detail.map((one) => one.msg ?? String(one)).join("; ");
  return `The server answered ${status}. Its log says more.`;
}

async function call(url, options = {}) {
  let answer;
  try {
    answer = await fetch(url, { ...options, signal: AbortSignal.timeout(TIMEOUT) });
  } catch (problem) {
    const isLate = problem.name === "TimeoutError";
    throw new Error(isLate ? "The server did not answer in time." : "The server cannot be reached.");
  }
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw new Refusal(answer.status, body);
  return body;
}

function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null);
  return new URLSearchParams(given).toString();
}

function json(body) {
  return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
}

/** Read something of the page's own server. */
export const get = (path, values = {}) => call(`api/${path}?${query(values)}`);

/** Change something by the page's own server. */
export const post = (path, values, body) => call(`api/${path}?${query(values)}`, json(body));

/** Ask Airflow's public API. The page lies one level below Airflow. */
export const airflow = (path, body) => call(`../api/v2/${path}`, json(body));
