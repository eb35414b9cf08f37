# SPDX-License-Identifier: Apache-2.0
"""What the page's scripts say, run by Node over elements that are only objects."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import airflow_changefeed

STATIC = Path(airflow_changefeed.__file__).parent / "plugins" / "static"
#: As much of a browser as the scripts need.
BROWSER = """
class Node {
  constructor(tag) {
    Object.assign(this, { tag, children: [], on: {}, isConnected: true, text: "", dataset: {} });
  }
  contains() { return false; }
  querySelector() { return null; }
  querySelectorAll() { return []; }
  replaceChildren(...all) { this.children = all; }
  get words() { return this.text || this.children.map((one) => one.words ?? one).join(""); }
  addEventListener(name, listener) { this.on[name] = listener; }
  setAttribute(name, value) { this[name] = value; }
  append(...all) { this.children.push(...all); }
  set textContent(text) { this.text = text; }
}
globalThis.document = { createElement: (tag) => new Node(tag) };
"""
#: A connection with three exports, one after the other; the answers of its server, in turn, each time.
CHECK = """
const { checkAll } = await import(STRIP);
const names = ["a", "b", "c"];
const use = { conn_id: "c", task_id: "t", consumer: "x", has_windows: true };
const uses = names.map((name) => ({ ...use, dag_id: name, feed: name }));
const consumers = [{ consumer: "x", may_change: true, is_of_events: false }];
const feeds = names.map((feed) => ({ feed, consumers }));
const results = [];
for (const answers of ANSWERS) {
  let asked = 0;
  globalThis.fetch = async () => {
    asked += 1;
    const status = answers[asked - 1];
    if (status === null) throw new TypeError("Failed to fetch");
    return { ok: status === 200, status, json: async () => ({}) };
  };
  let said = null;
  const [press] = checkAll({ conn_id: "c", uses }, feeds, async (words) => { said = words; });
  await press.on.click();
  results.push([asked, said]);
}
console.log(JSON.stringify(results));
"""

#: The list of two feeds, and what its button says after the list could not be read again.
LIST = """
const { overview } = await import(STRIP.replace("strip.js", "overview.js"));
const tick = () => new Promise((go) => setTimeout(go, 20));
const consumer = { consumer: "x", may_change: true, is_of_events: false, state: "complete", strip: null,
  complete_until: null, behind: 0, held: 0, files: null };
const feed = { kind: "outbox", group: "rest", problem: null, troubles: [], to_come: [],
  shard_count: 1, shards_counted: 1, consumers: [consumer] };
const feeds = ["a", "b"].map((name) => ({ ...feed, feed: name }));
const use = { conn_id: "c", task_id: "t", consumer: "x", has_windows: true };
const uses = ["a", "b"].map((name) => ({ ...use, dag_id: name, feed: name }));
let lists = 0;
globalThis.fetch = async (url) => {
  const isList = String(url).startsWith("api/feeds");
  const status = isList && (lists += 1) > 1 ? 503 : 200;
  const body = isList ? { at: "2026-01-01T00:00:00Z", feeds } : {};
  return { ok: status === 200, status, json: async () => body };
};
const found = (node, key) => (node["data-key"] === key ? node
  : (node.children ?? []).map((one) => found(one, key)).find(Boolean));
const page = overview({ conn_id: "c", uses });
await tick();
const key = "check all files c";
const press = found(page, key);
const before = press.words;
await press.on.click();
await tick();
console.log(JSON.stringify({ before, lists, after: found(page, key)?.words ?? null, page: page.words }));
"""


def run(tmp_path: Path, script: str) -> Any:
    """Run a script over the page's scripts, and return what it says."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed")
    copied = tmp_path / "static"
    shutil.copytree(STATIC, copied)
    (copied / "package.json").write_text('{"type": "module"}')
    strip = json.dumps((copied / "strip.js").as_uri())
    (copied / "check.mjs").write_text(BROWSER + script.replace("STRIP", strip))
    done = subprocess.run([node, str(copied / "check.mjs")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_all_outputs_are_checked(tmp_path: Path) -> None:
    """One that is refused leaves the others to be looked at; what ended early counts what it checked."""
    expected = {
        "Checked 2 of 3 outputs; b: ": [200, 503, 200],
        "Checked 0 of 3 outputs; ": [None],
        # Never fewer than none: the one that failed was not counted, and must not be taken off.
        "Checked 0 of 3 outputs;": [401],
        "Checked 1 of 3 outputs; ": [200, None],
    }
    answers = list(expected.values())
    found = run(tmp_path, CHECK.replace("ANSWERS", json.dumps(answers)))
    assert [asked for asked, _ in found] == [len(each) for each in answers]
    for (_, said), words in zip(found, expected, strict=True):
        assert said.startswith(words)


def test_a_check_that_is_over_offers_no_stop(tmp_path: Path) -> None:
    """Also where the list cannot be read again: what was found must not be lost with it."""
    found = run(tmp_path, LIST)
    assert (found["before"], found["lists"]) == ("Check all files", 2)
    assert found["after"] != "Stop"
    assert "Checked 2 of 2 outputs" in str(found["page"])
