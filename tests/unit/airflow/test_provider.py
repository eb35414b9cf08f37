# SPDX-License-Identifier: Apache-2.0
"""The package as Airflow sees it: provider info, public names, Java, the cost of an import."""

from __future__ import annotations

import importlib
import json
import os
import re
import stat
import subprocess
import sys
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from packaging.version import Version

import airflow_changefeed
from airflow_changefeed.connections import spark
from airflow_changefeed.exceptions import SparkEnvironmentError
from airflow_changefeed.get_provider_info import get_provider_info
from tests.minors import since

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).resolve().parents[3]
#: The page, and what leads to it.
HAS_PAGE = Version(version("apache-airflow")).release >= (3, 1)
_KINDS = ("hooks", "operators", "sensors", "triggers")
#: A class that people name in DAGs, or that Airflow shows.
_FACE = r"^class (?:Changefeed\w*(?:Operator|Sensor|Trigger|Notifier|Hook)|[A-Z]\w*Link)\b"


def test_the_provider_info_is_what_airflow_validates() -> None:
    """Airflow refuses a provider whose info does not fit its schema."""
    schema = files("airflow").joinpath("provider_info.schema.json").read_text(encoding="utf-8")
    jsonschema.validate(get_provider_info(), json.loads(schema))


@since("3.3", "all keys of the schema")
def test_the_provider_info_is_what_the_registry_asks_for() -> None:
    """It fits the schema of Airflow's own providers, but for what their releases need (state, epoch)."""
    text = files("airflow").joinpath("provider.yaml.schema.json").read_text(encoding="utf-8")
    asked = json.loads(text) | {"required": ["package-name", "name", "description", "versions"]}
    jsonschema.validate(get_provider_info(), asked)
    assert get_provider_info()["versions"] == [airflow_changefeed.__version__]


def test_the_guides_and_the_logo_of_the_provider_info_are_files() -> None:
    """Their paths begin at the root of the repository, as the schema asks."""
    info = get_provider_info()
    named = [each["how-to-guide"] for each in info["transfers"]]
    for integration in info["integrations"]:
        named += integration.get("how-to-guide", [])
        named += [integration["logo"]] if "logo" in integration else []
    assert [name for name in named if not (PROJECT / name.lstrip("/")).is_file()] == []


def test_every_module_with_a_face_is_in_the_provider_info() -> None:
    """Operators, sensors, triggers, notifiers and links that Airflow lists, and no others."""
    info = get_provider_info()
    listed = {name for kind in _KINDS for entry in info[kind] for name in entry["python-modules"]}
    listed |= {entry["python-module"] for entry in info["transfers"]}
    listed |= {name.rpartition(".")[0] for name in (*info["extra-links"], *info["notifications"])}
    found = set()
    for folder in ("hooks", "links", "notifications", "operators", "sensors", "transfers", "triggers"):
        for path in (PROJECT / "airflow_changefeed" / folder).glob("*.py"):
            named = re.findall(_FACE, path.read_text(encoding="utf-8"), re.MULTILINE)
            found |= {f"airflow_changefeed.{folder}.{path.stem}"} if named else set()
    # What operators and groups are made of.
    parts = ("transfers.finish",)
    found -= {f"airflow_changefeed.{part}" for part in parts}
    assert found == listed
    for name in listed:
        importlib.import_module(name)
    for name in (*info["extra-links"], *info["notifications"]):
        module, _, face = name.rpartition(".")
        assert getattr(importlib.import_module(module), face)


def test_every_public_name_can_be_had() -> None:
    """Lazily loaded names are there, and listed; an unknown one is an attribute error, as of any module."""
    for name in airflow_changefeed.__all__:
        assert getattr(airflow_changefeed, name) is not None
        assert name in dir(airflow_changefeed)
    with pytest.raises(AttributeError, match="Nothing"):
        _ = airflow_changefeed.Nothing


#: What neither the DAG processor nor the server shall load for us.
HEAVY = ("pyarrow", "pyspark", "pandas", "numpy", "fsspec", "adbc_driver_sqlite", "fastapi", "mssql_python")
PARSE = f"""
import sys
from airflow.sdk import DAG
before = set(sys.modules)
from airflow_changefeed import ChangefeedHook, ChangefeedSensor, ChangefeedToParquetOperator
from airflow_changefeed import ChangefeedFreshnessNotifier, ChangefeedFreshnessBranchOperator
assert ChangefeedSensor(task_id="wait", feed="f", consumer="c").deferrable
print(*sorted(set({(*HEAVY, "sqlalchemy.orm")}) & (set(sys.modules) - before)))
"""
PLUGIN = f"""
from airflow.plugins_manager import AirflowPlugin
before = set(sys.modules)
from {{module}} import {{name}} as plugin
assert issubclass(plugin, AirflowPlugin)
plugin.validate()
views, (app,) = plugin.external_views, plugin.fastapi_apps
assert ["/" + view["href"].partition("?")[0] for view in views] == [app["url_prefix"] + "/"] * 3
assert [view["destination"] for view in views] == ["nav", "dag", "task"]
assert len({{{{view["url_route"] for view in views}}}}) == 3
print(*sorted(set({(*HEAVY, "sqlalchemy")}) & (set(sys.modules) - before)))
"""


def test_parsing_a_dag_file_loads_nothing_heavy() -> None:
    """
    The faces bring neither Arrow nor Spark nor a database driver into the DAG processor, and the page's entry
    point says where it is and loads nothing of it. Airflow's ``[operators] default_deferrable`` is heeded.
    """
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["entry-points"]["airflow.plugins"]["changefeed"].partition(":")
    done = subprocess.run(
        [sys.executable, "-c", PARSE + (PLUGIN.format(module=module, name=name) if HAS_PAGE else "")],
        cwd=PROJECT,
        env={**os.environ, "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == []


def test_an_old_or_missing_java_is_refused(tmp_path: Path) -> None:
    """Spark would fail late with a class file version; we say what to install."""
    for text, number in (
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("no such thing", 0),
    ):
        assert spark.java_version(text) == number
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(SparkEnvironmentError, match=r"Java 17.*version 11.*openjdk-17"):
        spark.check_java({"JAVA_HOME": str(tmp_path)})
    with pytest.raises(SparkEnvironmentError, match="was not found"):
        spark.check_java({"PATH": str(tmp_path)})
