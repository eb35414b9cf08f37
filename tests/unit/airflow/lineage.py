# SPDX-License-Identifier: Apache-2.0
"""Airflow's provider for OpenLineage, or as much of it as is used, and what tasks hand to it."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.openlineage import facet

from airflow_changefeed.observability.lineage import ReportsLineage

PROVIDER = "airflow.providers.openlineage"
LEAF = "airflow_changefeed.observability.openlineage_facet"


class Recorded:
    """A class of the provider or its client, which keeps what it is given."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)


def is_real() -> bool:
    """Whether Airflow's provider for OpenLineage is installed."""
    return find_spec(PROVIDER) is not None


def use_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for Airflow's provider until the test ends, unless the real one is installed."""
    if is_real():
        return
    package, extractors = ModuleType(PROVIDER), ModuleType(f"{PROVIDER}.extractors")
    package.__spec__ = ModuleSpec(PROVIDER, None, is_package=True)
    extractors.OperatorLineage = Recorded  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, PROVIDER, package)
    monkeypatch.setitem(sys.modules, f"{PROVIDER}.extractors", extractors)
    for name in facet.__all__:
        monkeypatch.setattr(facet, name, Recorded)
    # It is imported with these, and again after the test.
    monkeypatch.setitem(sys.modules, LEAF, ModuleType(LEAF))
    del sys.modules[LEAF]


def plain(value: Any) -> Any:
    """Return what OpenLineage sends of an object, as JSON values."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    names = [field.name for field in getattr(type(value), "__attrs_attrs__", ())]
    names += list(getattr(value, "__dict__", {}))
    return {name: plain(getattr(value, name)) for name in names if name[0] != "_"} if names else value


def completed(task: ReportsLineage) -> Any:
    """Return what a task that has run reports."""
    return plain(task.get_openlineage_facets_on_complete(SimpleNamespace()))


def failed(task: ReportsLineage) -> Any:
    """Return what a task that has failed reports."""
    return plain(task.get_openlineage_facets_on_failure(SimpleNamespace()))


def names(datasets: Any) -> list[tuple[str, str]]:
    """Return the names of datasets."""
    return [(each["namespace"], each["name"]) for each in datasets]


def columns(dataset: Any) -> dict[str, str]:
    """Return the columns of a dataset and their types."""
    return {each["name"]: each["type"] for each in dataset["facets"]["schema"]["fields"]}


def statistics(dataset: Any) -> dict[str, int]:
    """Return how many rows, bytes and files were written to a dataset."""
    given = dataset["outputFacets"]["outputStatistics"]
    return {name: given[name] for name in ("rowCount", "size", "fileCount")}
