// SPDX-License-Identifier: Apache-2.0
// Requests to the page's own server and to Airflow's API, both as the logged-in user.

let timeout = 30_000; // milliseconds

/** Wait longer than the server, which waits for a database and then as long for outputs. */
export function waitLongerThan(seconds) {
  timeout = (2 * seconds + 10) * 1000;
}

/** A refused request: its message, status and body. */
class Refusal extends Error {
  constructor(status, body) {
    super(wordsOf(status, body));
    this.status = status;
    this.body = body;
  }

  /** Somebody else changed it after this page was loaded. */
  get isStale() {
    return this.status === 409 && this.body?.error === "StaleVersionError";
  }
}

function wordsOf(status, body) {
  if (status === 401) return "Your session has expired. Log in to Airflow again, then reload this page.";
  const detail = body?.detail;
  if (typeof detail === "string") return detail;
  if (Array.isArray(detail)) return detail.map((one) => one.msg ?? String(one)).join("; ");
  return `The server answered with status ${status}. See its log for details.`;
}

async function call(url, options = {}) {
  let answer;
  try {
    answer = await fetch(url, { ...options, signal: AbortSignal.timeout(timeout) });
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

function json(body, method = "POST") {
  return { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
}

/** Read from the page's own server. */
export const get = (path, values = {}) => call(`api/${path}?${query(values)}`);

const queues = new Map(); // what ends with the last background question of a connection: null, or an error if it was late

/**
 * Read in the background, for an element that is on the page by then: of a connection one at a time.
 *
 * After one that was not answered in time those that wait fail, too: more would only block its threads.
 */
export function ask(element, path, values) {
  const before = queues.get(values.conn_id) ?? new Promise((begin) => { setTimeout(begin, 0, null); });
  const answer = before.then((late) => {
    if (late) throw late;
    if (!element.isConnected) throw new Error("The page has changed.");
    return get(path, values);
  });
  const end = answer.then(() => null, (error) => ((error.status ?? 503) === 503 && element.isConnected ? error : null));
  queues.set(values.conn_id, end);
  end.then(() => { if (queues.get(values.conn_id) === end) queues.delete(values.conn_id); });
  return answer;
}

/** Change something on the page's own server. */
export const post = (path, values, body) => call(`api/${path}?${query(values)}`, json(body));

/** Call Airflow's public API: read, or send a body. The page is one level below Airflow. */
export const airflow = (path, body, method) => call(`../api/v2/${path}`, body ? json(body, method) : {});
