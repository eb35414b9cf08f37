# SPDX-License-Identifier: Apache-2.0
"""What every reader of a range checks of the batches that a source gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.exceptions import IncompleteReadError
from airflow_changefeed.sources.base import ULID_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa


def check_order(batch: pa.RecordBatch, last: str, range_: UlidRange, feed: str, shard: Shard) -> str:
    """
    Check that a batch goes on in ascending ULIDs within its range.

    :param last: last ULID of the batch before, exclusive; the beginning of the range for the first one.
    :return: the batch's last ULID.
    :raises IncompleteReadError: the source gave events out of order or outside the range; transient.
    """
    import pyarrow.compute as pc

    if batch.num_rows == 0:
        return last
    # ULIDs as text sort as they do as numbers.
    ulids = batch.column(ULID_COLUMN)
    first, final = ulids[0].as_py(), ulids[-1].as_py()
    ascends = batch.num_rows == 1 or pc.all(pc.less(ulids.slice(0, len(ulids) - 1), ulids.slice(1))).as_py()
    if not (ascends and first > last and final <= str(range_.upto)):
        raise IncompleteReadError(
            f"feed {feed!r}, shard {shard}: the source gave events out of order or outside ({range_.after}, "
            f"{range_.upto}], between {first} and {final}; retry",
            feed=feed,
            shard=shard,
        )
    return str(final)
