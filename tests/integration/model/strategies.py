# SPDX-License-Identifier: Apache-2.0
"""Any program, for hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.integration.model.database import ENDLESS, SHARDS
from tests.integration.model.drains import drain, seal
from tests.integration.model.programs import Maker, Program, maker, writer
from tests.integration.model.readers import purge, read, read_range
from tests.integration.model.writers import write_serialized

_SHARDS = st.sampled_from(SHARDS)
_HINTS = st.integers(1, 6)
_UNTIL = st.integers(2, 6)
_PAGE_SIZES = st.sampled_from((1, 2, ENDLESS))


def _made(function: Callable[..., Any], **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Maker]:
    return st.fixed_dictionaries(arguments).map(lambda given: maker(function, **given))


_EVENTS = st.lists(st.tuples(_SHARDS, _HINTS), min_size=1, max_size=3).map(tuple)
_OUTBOX_WRITERS = st.builds(
    lambda transactions, rolls_back: writer(*transactions, rolls_back=rolls_back),
    st.lists(_EVENTS, min_size=1, max_size=2),
    st.sampled_from((False, False, False, True)),
)
_SERIALIZED_WRITERS = _made(
    write_serialized,
    shard=_SHARDS,
    hint=_HINTS,
    order=st.integers(1, 3).flatmap(lambda count: st.permutations(range(count))),
    rolls_back=st.sampled_from((False, False, False, True)),
)
_READERS = st.one_of(
    _made(read, shard=_SHARDS, pages=st.integers(1, 3), page_size=_PAGE_SIZES),
    _made(read_range, shard=_SHARDS, until=_UNTIL),
)
_OUTBOX_OTHERS = st.one_of(
    _made(drain, shard=_SHARDS, page_size=_PAGE_SIZES, backwards=st.booleans()),
    _made(read, shard=_SHARDS, pages=st.integers(1, 2), page_size=_PAGE_SIZES, drains=st.just(True)),
    _made(seal, until=_UNTIL),
    _made(purge, shard=_SHARDS, until=_UNTIL),
    _READERS,
)
_SERIALIZED_OTHERS = st.one_of(_made(seal, until=_UNTIL), _READERS)


def _programs(
    writers: st.SearchStrategy[Maker], others: st.SearchStrategy[Maker]
) -> st.SearchStrategy[Program]:
    return st.builds(
        lambda makers, before, after: Program(
            {f"actor {place}": actor for place, actor in enumerate(makers)}, before, after
        ),
        st.tuples(st.lists(writers, min_size=2, max_size=3), st.lists(others, min_size=1, max_size=4)).map(
            lambda both: both[0] + both[1]
        ),
        st.lists(st.one_of(writers, others), max_size=4),
        st.lists(writers, max_size=1),
    )


OUTBOX_PROGRAMS = _programs(_OUTBOX_WRITERS, _OUTBOX_OTHERS)
SERIALIZED_PROGRAMS = _programs(_SERIALIZED_WRITERS, _SERIALIZED_OTHERS)
#: Choices among the actors that are ready; when they are used up, the actors take turns.
SCHEDULES = st.lists(st.integers(0, 6), max_size=150)
