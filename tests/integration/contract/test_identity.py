# SPDX-License-Identifier: Apache-2.0
"""A database has an identity: made once, kept, and changed only by who wants a copy to be another one."""

from __future__ import annotations

import uuid

from airflow_changefeed.sources import open_source
from tests.integration.contract.bench import Bench, another


def test_an_identity_is_made_once_and_kept(bench: Bench) -> None:
    """By everyone who asks, through set-ups, upgrades and feeds that come and go."""
    found = bench.source.identity()
    assert str(uuid.UUID(found.id)) == found.id
    assert open_source(bench.source.describe()).identity() == found
    second = another(bench, "myservice.Other")
    assert second.source.identity() == found
    bench.source.install()
    bench.source.set_up_feed(bench.feed)
    bench.source.drop_feed(bench.feed)
    assert open_source(bench.source.describe()).identity() == found


def test_a_copy_gets_an_identity_of_its_own_and_keeps_the_rest(bench: Bench) -> None:
    """Events and seals are as they were; whoever asks is told the new one."""
    bench.write(3)
    bench.seal()
    before, events, state = bench.source.identity(), bench.events(), bench.status()
    renewed = bench.source.renew_identity()
    assert str(uuid.UUID(renewed.id)) == renewed.id != before.id
    assert bench.source.identity() == renewed == open_source(bench.source.describe()).identity()
    assert (bench.events(), bench.status()) == (events, state)
    bench.source.install()
    assert open_source(bench.source.describe()).identity() == renewed
