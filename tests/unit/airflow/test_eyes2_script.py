# SPDX-License-Identifier: Apache-2.0
"""What the page's scripts say, run by Node over elements that are only objects."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import airflow_changefeed

STATIC = Path(airflow_changefeed.__file__).parent / "plugins" / "static"
#: As much of a browser as the scripts need.
BROWSER = """
class Node {
  constructor(tag) { this.tag = tag; this.children = []; this.on = {}; this.isConnected = true; this.text = ""; }
  addEventListener(name, listener) { this.on[name] = listener; }
  setAttribute(name, value) { this[name] = value; }
  append(...all) { this.children.push(...all); }
  set textContent(text) { this.text = text; }
}
globalThis.document = { createElement: (tag) => new Node(tag) };
"""
#: A connection with three exports, one after the other; the answers of its server, in turn.
CHECK = """
const { checkAll } = await import(STRIP);
const names = ["a", "b", "c"];
const uses = names.map((name) => ({ conn_id: "c", dag_id: name, task_id: "t", feed: name, consumer: "x", has_windows: true }));
const feeds = names.map((feed) => ({ feed, consumers: [{ consumer: "x", may_change: true, is_of_events: false }] }));
let asked = 0;
globalThis.fetch = async () => {
  asked += 1;
  const status = ANSWERS[asked - 1];
  if (status === null) throw new TypeError("Failed to fetch");
  return { ok: status === 200, status, json: async () => ({}) };
};
let said = null;
const [press] = checkAll({ conn_id: "c", uses }, feeds, async (words) => { said = words; });
await press.on.click();
console.log(JSON.stringify({ asked, said }));
"""


def check_all(tmp_path: Path, answers: list[int | None]) -> dict[str, object]:
    """Press the button; return how often the server was asked, and what the page says in the end."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed")
    copied = tmp_path / "static"
    shutil.copytree(STATIC, copied)
    (copied / "package.json").write_text('{"type": "module"}')
    strip = json.dumps((copied / "strip.js").as_uri())
    script = BROWSER + CHECK.replace("STRIP", strip).replace("ANSWERS", json.dumps(answers))
    (copied / "check.mjs").write_text(script)
    done = subprocess.run([node, str(copied / "check.mjs")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_eyes2_all_outputs_are_checked(tmp_path: Path) -> None:
    """One that is refused leaves the others to be looked at."""
    found = check_all(tmp_path, [200, 503, 200])
    assert found["asked"] == 3
    assert str(found["said"]).startswith("Checked 2 of 3 outputs; b: ")


@pytest.mark.parametrize(("answers", "checked"), [([None], 0), ([401], 0), ([200, None], 1)])
def test_eyes2_what_ended_early_counts_what_it_checked(
    answers: list[int | None], checked: int, tmp_path: Path
) -> None:
    """Never fewer than none: the one that failed was not counted, and must not be taken off."""
    found = check_all(tmp_path, answers)
    assert found["asked"] == len(answers)
    assert str(found["said"]).startswith(f"Checked {checked} of 3 outputs; ")
