# SPDX-License-Identifier: Apache-2.0
"""Uploads: seen only once they are completed, and aborted when nobody will."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.doctor import output as doctor_output
from airflow_changefeed.exceptions import SupersededError, TransientError
from airflow_changefeed.output.attempts import end
from tests.exports import verify
from tests.stores.servers import Outputs, Server
from tests.unit.export.faults import plain_rows
from tests.unit.export.flights import FEED, Flights, found_faults
from tests.unit.export.test_commit import ROWS, World, told


def test_nobody_sees_a_file_before_its_commit(server: Server, outputs: Outputs, flights: Flights) -> None:
    """What tasks have written is in no listing of the data; once committed all of it is."""
    world = World(outputs(), flights)
    attempt = world.attempt()
    assert plain_rows(world.files, FEED) == []
    attempt.commit(world.files)
    world.check_complete(attempt.plan.attempt)


def test_a_completed_upload_may_be_completed_again(server: Server, flights: Flights) -> None:
    """After a crash between the completion and the manifest; but not where the file was taken away."""
    files = server.files(proxied=False)
    if not files.has_uploads:
        assert server.kind == "google"
        return
    path = f"{files.root}/a"
    with files.writer(path) as file:
        file.write(b"12345")
    assert files.size(path) is None
    assert files.complete(path, file.receipt, 5)
    assert files.complete(path, file.receipt, 5)
    assert files.read(path) == b"12345"
    files.remove_file(path)
    assert not files.complete(path, file.receipt, 5)


# gcsfs sends a part as bytes, of which aiohttp warns.
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_file_of_many_parts_is_whole(server: Server) -> None:
    """Parts of 16 MiB, in order, with the rest behind them."""
    files = server.files(proxied=False)
    path, content = f"{files.root}/large", bytes(range(256)) * 140_000
    with files.writer(path) as file:
        for start in range(0, len(content), 5_000_000):
            file.write(content[start : start + 5_000_000])
        assert file.tell() == len(content)
    if files.has_uploads:
        assert files.complete(path, file.receipt, len(content))
    assert files.read(path) == content


def test_uploads_of_the_dead_are_named_and_aborted(
    s3_server: Server, flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verify and doctor name what a killed attempt has uploaded; the next attempt aborts it, for good."""
    world = World(s3_server.files(), flights)
    database = flights.source.identity().id
    dead = world.attempt()
    [(_, attempt, upload)] = world.store.uploads()
    assert attempt == dead.plan.attempt
    found = [each for each in verify(world.store) if each.path == upload.path]
    assert [each.kind for each in found] == [FaultKind.LEFTOVER]
    # moto says of each upload that it was begun in 2010.
    with monkeypatch.context() as young:
        young.setattr(doctor_output, "_UPLOAD_AGE", timedelta(days=36_500))
        assert found_faults(world.store, database) == []
    [fault] = found_faults(world.store, database)
    assert fault.kind is FaultKind.UPLOAD_LEFT
    assert upload.path in fault.what
    alive = world.attempt()
    alive.commit(world.files)
    world.check_complete(alive.plan.attempt)
    with pytest.raises(SupersededError):
        dead.commit(world.files)
    end(world.store, dead.plan, committed=False)
    world.check_complete(alive.plan.attempt)


def test_the_upload_of_a_tasks_twin_is_aborted(s3_server: Server, flights: Flights) -> None:
    """Of two runs of a task the driver completes one, and no trace of the other is left."""
    world = World(s3_server.files(), flights)
    first = world.attempt()
    twin = world.write(first.plan, task_attempt=1)
    assert len(list(world.store.uploads())) == 2
    twin.commit(world.files)
    world.check_complete(twin.plan.attempt)


def test_an_upload_that_was_aborted_while_it_was_written_may_be_tried_again(s3_server: Server) -> None:
    """A newer attempt, or a lifecycle rule, has aborted it: the task says so, and a retry helps."""
    files = s3_server.files(proxied=False)
    path = f"{files.root}/a"
    context = files.writer(path)
    context.__enter__().write(b"12345")
    [upload] = files.uploads(files.root)
    files.abort(upload.path, upload.upload_id)
    with pytest.raises(TransientError, match="aborted by a newer attempt"):
        context.__exit__(None, None, None)
    assert files.uploads(files.root) == []


def test_uploads_of_tasks_that_outlived_their_driver_are_aborted(s3_server: Server, flights: Flights) -> None:
    """A task that goes on after its job has failed leaves an upload: whoever takes the result aborts it."""
    world = World(s3_server.files(), flights)
    late = world.attempt()
    assert list(world.store.uploads())
    told(world.store, late.plan, ValueError("failed"))
    assert list(world.store.uploads()) == []


def test_a_result_nobody_waits_for_is_removed_by_the_next_attempt(
    s3_server: Server, flights: Flights
) -> None:
    """A zombie that ends after it was removed as dead leaves its last word, for a while."""
    store = World(s3_server.files(), flights).store
    world = World(store.files, flights)
    zombie = world.attempt()
    world.attempt().commit(world.files)
    end(world.store, zombie.plan, committed=False)
    last = world.attempt()
    last.commit(world.files)
    world.check_complete(last.plan.attempt)
    assert len(plain_rows(world.files, FEED)) == ROWS
