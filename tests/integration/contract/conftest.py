# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the contract suite; each test runs once for every engine that is expected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_changefeed.core.feed import FeedKind
from tests.integration.contract.bench import Bench, set_up
from tests.integration.contract.consumers import Stand, set_up_stand
from tests.integration.contract.engines import Engine, Table, expected_engines, open_engine


@pytest.fixture(params=expected_engines())
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """Give an engine on an empty database."""
    with open_engine(request.param, tmp_path) as engine:
        yield engine


@pytest.fixture
def bench(engine: Engine) -> Bench:
    """Give an outbox feed."""
    return set_up(engine, Table())


@pytest.fixture
def serialized(engine: Engine) -> Bench:
    """Give a feed of serialized writers."""
    return set_up(engine, Table(kind=FeedKind.SERIALIZED))


@pytest.fixture(params=list(FeedKind), ids=lambda kind: kind.value)
def either(request: pytest.FixtureRequest, engine: Engine) -> Bench:
    """Give a feed of each kind."""
    return set_up(engine, Table(kind=request.param))


@pytest.fixture
def stand(bench: Bench) -> Stand:
    """Give a consumer of events, and a table for its work."""
    return set_up_stand(bench)
