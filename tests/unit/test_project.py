# SPDX-License-Identifier: Apache-2.0
"""What the project's own files promise: versions that fit, no addresses, checks that cannot pass unrun."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import airflow_changefeed
from tests.examples import section
from tests.tools.check_report import EXPECTED, Outcome, main, problems, read_report

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def _constraint_lines() -> list[str]:
    lines = (PROJECT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _environment(python: str) -> dict[str, str]:
    return {"python_version": python, "python_full_version": f"{python}.9"}


def _pins(python: str) -> dict[str, str]:
    """Read name -> version of the constraints that hold for one Python version."""
    pins: dict[str, str] = {}
    for requirement in map(Requirement, _constraint_lines()):
        if requirement.marker is None or requirement.marker.evaluate(_environment(python)):
            name = canonicalize_name(requirement.name)
            assert name not in pins, f"{name} is pinned twice for Python {python}"
            pins[name] = str(requirement.specifier).removeprefix("==")
    return pins


def _pyproject() -> dict[str, object]:
    return tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))


def _dependencies() -> list[Requirement]:
    project = _pyproject()["project"]
    assert isinstance(project, dict)
    extras = (line for lines in project["optional-dependencies"].values() for line in lines)
    return [Requirement(line) for line in (*project["dependencies"], *extras)]


def test_constraints_hold_exact_versions_and_nothing_else() -> None:
    """Each constraint is one exact version, perhaps with a marker: no address, no path, no option."""
    for line in _constraint_lines():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+( ; [^@#]+)?", line), line
        assert "//" not in line


def test_pyspark_and_pyspark_client_are_one_version() -> None:
    """Both own the folder pyspark/, so another version of one would mix its code with the other's jars."""
    for pins in map(_pins, PYTHONS):
        assert pins["pyspark"] == pins["pyspark-client"]


def test_an_install_without_constraints_takes_one_version_of_both_pysparks() -> None:
    """It takes the newest of each, so none may be newer than what is tested, which is out as both."""
    both = {each.name: each.specifier for each in _dependencies() if each.name.startswith("pyspark")}
    assert set(both) == {"pyspark", "pyspark-client"}
    assert both["pyspark-client"] == both["pyspark"]
    assert f"<={_pins('3.12')['pyspark']}" in str(both["pyspark"]).split(",")


def _table(first: str) -> list[dict[str, str]]:
    """Read a table of docs/reference/compatibility.md by the first cell of its head."""
    page = section("reference/compatibility.md#spark-versions")
    (text,) = [each for each in page.split("\n\n") if each.startswith(f"| {first} |".replace("  ", " "))]
    head, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines()]
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_the_table_of_sparks_says_what_is_tested_and_installed() -> None:
    """Its patches are those of make matrix-spark; what goes with Airflow's provider, pyproject.toml takes."""
    tested = re.findall(r"^PYSPARK_(\S+) := (\S+)", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    rows = _table("Spark")
    assert [(row["Spark"], row["Tested"]) for row in rows] == tested
    (pyspark,) = [each.specifier for each in _dependencies() if each.name == "pyspark"]
    for row in rows:
        assert row["With Airflow's provider"] == ("yes" if pyspark.contains(row["Tested"]) else "no")


def test_what_a_job_needs_on_spark_3_5_is_what_it_is_tested_with() -> None:
    """The oldest versions in the table of needs are those of constraints/spark-3.5.txt."""
    pins = dict(
        re.findall(r"^(\S+)==(\S+)", (PROJECT / "constraints/spark-3.5.txt").read_text(), re.MULTILINE)
    )
    needs = {row[""].split(",")[0]: row["Spark 3.5"] for row in _table("")}
    for name in ("pyarrow", "numpy", "pandas", "fsspec"):
        assert f"{pins[name]}.".startswith(f"{needs[name]}."), name


def test_every_dependency_is_pinned_within_its_range() -> None:
    """What pyproject.toml asks for stands in constraints.txt, in a version that it allows."""
    for python in PYTHONS:
        pins = _pins(python)
        for each in _dependencies():
            if each.marker is None or each.marker.evaluate(_environment(python)):
                name = canonicalize_name(each.name)
                assert name in pins, f"{name} is missing from constraints.txt: run make constraints"
                assert each.specifier.contains(pins[name], prereleases=True), (name, python)


def test_what_builds_the_site_is_pinned_within_its_range() -> None:
    """What the group docs asks for stands in constraints/docs.txt, in the versions of constraints.txt."""
    groups = _pyproject()["dependency-groups"]
    assert isinstance(groups, dict)
    lines = (PROJECT / "constraints/docs.txt").read_text(encoding="utf-8").splitlines()
    pins = {each.name: each for each in map(Requirement, (line for line in lines if line[:1] != "#"))}
    for wanted in map(Requirement, groups["docs"]):
        assert wanted.specifier.contains(str(pins[wanted.name].specifier).removeprefix("=="))
    ours = _pins("3.12")
    assert {name: str(pins[name].specifier) for name in pins.keys() & ours.keys()} == {
        name: f"=={ours[name]}" for name in pins.keys() & ours.keys()
    }


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    """As a directive, which make docs turns into its signature and docstring."""
    page = (PROJECT / "docs/reference/api.md").read_text(encoding="utf-8")
    shown = set(
        re.findall(r"^\.\. auto(?:class|function):: (?:airflow_changefeed\.)?(\w+)$", page, re.MULTILINE)
    )
    assert set(airflow_changefeed.__all__) - {"__version__"} == shown


def test_the_wheel_holds_the_constraints_and_the_providers_entry_point(tmp_path: Path) -> None:
    """Who installs from PyPI has no clone to take the former from, and Airflow finds us by the latter."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=PROJECT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        held = archive.read("airflow_changefeed/constraints.txt")
        (points,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        entry_points = archive.read(points).decode()
    assert "provider_info = airflow_changefeed.get_provider_info:get_provider_info" in entry_points
    assert held == (PROJECT / "constraints.txt").read_bytes()


def _anchors(page: Path) -> set[str]:
    """Name the headings of a page as GitHub does."""
    text = re.sub(r"^```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ +(.+?) *$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_between_pages_leads_to_a_file_and_a_heading() -> None:
    """README, changelog and all pages of docs/."""
    broken = []
    for page in (*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")):
        text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)]+)\)", text):
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            if "://" not in link and not (target.exists() and (not anchor or anchor in _anchors(target))):
                broken.append(f"{page.relative_to(PROJECT)}: {link}")
    assert broken == []


def test_files_that_these_pages_name_are_there() -> None:
    """Who carries on looks for them; a path begins at the project or the package, a name is somewhere."""
    for page in ("docs/CONTRIBUTING.md", "docs/SECURITY.md"):
        text = re.sub(r"```.*?```", "", (PROJECT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
        named = re.findall(r"`([\w./-]+(?:\.(?:py|toml|txt|md|sql)|/))`", text)
        assert len(named) > 5
        for path in named:
            places = (PROJECT / path, PROJECT / "airflow_changefeed" / path)
            there = any(map(Path.exists, places)) or any((PROJECT / "tests").rglob(Path(path).name))
            assert there, (page, path)


def test_every_page_can_be_found_from_the_index() -> None:
    """docs/index.md, or for contributors docs/CONTRIBUTING.md, links every page."""
    docs = PROJECT / "docs"
    lists = "".join((docs / page).read_text(encoding="utf-8") for page in ("index.md", "CONTRIBUTING.md"))
    linked = set(re.findall(r"\]\(([^)#]+)", lists))
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert pages - linked == {"index.md"}


def test_every_picture_is_shown_by_a_page() -> None:
    """One that no page shows would grow old unseen."""
    docs = PROJECT / "docs"
    text = "".join(page.read_text(encoding="utf-8") for page in docs.rglob("*.md"))
    assert [path.name for path in (docs / "images").iterdir() if f"images/{path.name})" not in text] == []


def test_every_python_file_names_its_licence() -> None:
    """The first line of every file that holds anything is the SPDX header."""
    folders = ("airflow_changefeed", "tests", "dags")
    files = [path for folder in folders for path in (PROJECT / folder).rglob("*.py") if path.stat().st_size]
    header = "# SPDX-License-Identifier: Apache-2.0"
    assert [str(path) for path in files if not path.read_text(encoding="utf-8").startswith(header)] == []


def _outcomes(*rows: tuple[str, str]) -> list[Outcome]:
    return [Outcome(name=name, result=result, message="why") for name, result in rows]


def test_a_suite_that_did_not_run_or_a_skip_that_is_not_allowed_is_a_problem() -> None:
    """A test that was skipped has not run, also where its skip is on the list."""
    suites = [(f"tests.{suite}.a::t", "passed") for suite in ("unit", "integration", "system")]
    for tier in ("test", "test-more", "soak"):
        assert problems(tier, _outcomes(*suites), allowed=[]) == []
        for number in range(3):
            rest = suites[:number] + suites[number + 1 :]
            skipped = (suites[number][0], "skipped")
            assert len(problems(tier, _outcomes(*rest), allowed=[])) == 1
            assert len(problems(tier, _outcomes(*rest, skipped), allowed=[skipped[0]])) == 1
    rows = [("tests.stores.a::one", "passed"), ("tests.stores.a::other", "skipped")]
    assert len(problems("stores", _outcomes(*rows), allowed=["tests.stores.b::*"])) == 1
    assert problems("stores", _outcomes(*rows), allowed=["tests.stores.a::oth*"]) == []


def test_a_tier_without_a_report_fails_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tests, and checks without a report, are counted together; what left no report is one failure."""
    case = '<testcase classname="tests.stores.a" name="t[b@c]@d"/>'
    (tmp_path / "stores.xml").write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
    skips = tmp_path / "skips.txt"
    skips.write_text("# none\n")
    assert main([str(tmp_path), str(skips), "0", "stores"]) == 0
    assert read_report(tmp_path / "stores.xml")[0].name == "tests.stores.a::t[b@c]"
    assert main([str(tmp_path), str(skips), "2", "stores", "browser"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 3 failed"


def test_every_test_is_in_a_tier_that_is_run() -> None:
    """A file is in a folder of the three tiers, or in that of a target which CI or the night runs."""
    tests = PROJECT / "tests"
    folders = {path.relative_to(tests).parts[0] for path in tests.rglob("test_*.py")}
    tiers = {"unit", "integration", "system"}
    assert folders - tiers == {*EXPECTED, "registry"} - {"test", "test-more", "soak", "matrix"}
    runs = [PROJECT / ".ci/run", PROJECT / ".github/workflows/nightly.yml"]
    called = set(re.findall(r"\bmake ([a-z-]+)", "".join(path.read_text(encoding="utf-8") for path in runs)))
    assert {*EXPECTED, "matrix-spark", "mutants"} <= called  # registry is a part of matrix-spark
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    reporting = re.findall(r"^([a-z-]+):[^=\n]*\n(?:\t.*\n)*?\t.*\$\(PYTEST\)", makefile, re.MULTILINE)
    assert set(EXPECTED) - {"matrix"} == set(reporting)


def test_a_report_is_read_as_pytest_writes_it(tmp_path: Path) -> None:
    """Passed, failed, broken, skipped and expectedly failing tests are distinguished."""
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite name="pytest">'
        '<testcase classname="tests.unit.a" name="t1"/>'
        '<testcase classname="tests.unit.a" name="t2"><failure message="no"/></testcase>'
        '<testcase classname="tests.unit.a" name="t3"><error message="no"/></testcase>'
        '<testcase classname="tests.unit.a" name="t4"><skipped type="pytest.skip" message="no"/></testcase>'
        '<testcase classname="tests.unit.a" name="t5"><skipped type="pytest.xfail" message="no"/></testcase>'
        "</testsuite></testsuites>",
        encoding="utf-8",
    )
    outcomes = read_report(report)
    assert [outcome.result for outcome in outcomes] == ["passed", "failed", "failed", "skipped", "xfailed"]
    assert outcomes[0].name == "tests.unit.a::t1"
