# SPDX-License-Identifier: Apache-2.0
"""Resource versions as T-SQL callers have them: optional, and noted for everybody."""

from __future__ import annotations

from tests.integration.mssql.server import Client


def _table(client: Client, name: str) -> str:
    """Make a feed, as callers of mssql-changefeed do; return its name."""
    client.results(f"create table myservice.{name} (id bigint not null primary key, was nvarchar(10) null)")
    client.results(f"exec changefeed.setup_feed N'myservice.{name}', 1")
    return f"myservice.{name}"


def _version(client: Client, feed: str) -> int:
    return int(client.value("select resource_version from changefeed.feeds where name = ?", feed))


def test_a_version_is_named_by_who_wants_to(client: Client) -> None:
    """Without one all is as it was; with one that is not the present one nothing is changed."""
    feed = _table(client, "named")
    seen = _version(client, feed)
    call = f"exec changefeed.setup_feed N'{feed}', 1, @time_tolerance_ms ="
    client.results(f"{call} 1000, @resource_version = {seen}")
    client.fails(77155, f"{call} 2000, @resource_version = {seen}", f"version {seen + 1}", "tolerance 1 s")
    client.fails(77155, f"{call} 2000, @resource_version = {seen + 9}", "restored")
    client.fails(77155, f"exec changefeed.drop_feed N'{feed}', @resource_version = {seen}", "nothing was")
    assert _version(client, feed) == seen + 1
    client.results(f"{call} 2000")
    client.results(f"exec changefeed.upgrade_feed N'{feed}', 1, @resource_version = {seen + 2}")
    assert _version(client, feed) == seen + 2


def test_what_changed_beneath_is_noted_once(client: Client) -> None:
    """Each kind of change; other feeds, and what is no change, are left alone."""
    feed, other = _table(client, "beneath"), _table(client, "beside")
    client.results("exec changefeed.note_schemas")
    seen, before = _version(client, feed), _version(client, other)
    for number, change in enumerate(
        ("add more int null", "alter column was nvarchar(20)", "drop column was")
    ):
        client.results(f"alter table {feed} {change}")
        for name in (f"N'{feed}'", "null", "N'nobody'"):
            client.results(f"exec changefeed.note_schemas @name = {name}")
        assert _version(client, feed) == seen + 1 + number
    assert _version(client, other) == before


def test_a_change_in_the_transaction_of_a_set_up_is_a_new_version(client: Client) -> None:
    """As migrations do it: whoever saw the feed before is refused, though nothing was noted between."""
    feed = _table(client, "migrated")
    seen = _version(client, feed)
    client.results(
        f"begin transaction; alter table {feed} add more int null; "
        f"exec changefeed.setup_feed N'{feed}', 1; commit"
    )
    assert _version(client, feed) == seen + 1
    client.fails(77155, f"exec changefeed.drop_feed N'{feed}', @resource_version = {seen}", "nothing was")
