# SPDX-License-Identifier: Apache-2.0
"""Documents that others have written: whatever is in them gives a value, or an error that names them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.capture.shapes import _read as read_shape
from airflow_changefeed.core.capture import CaptureShape, CaptureSpec
from airflow_changefeed.core.codec import Document, decode, encode
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.core.cursor import CursorDocument
from airflow_changefeed.export.completed import CompletedExport
from tests.unit.hostile.mutation import VALUES, hostile, hostile_texts, mutated, value_or_error
from tests.unit.hostile.valid import document_kinds, samples

KINDS = document_kinds()


@pytest.fixture
def valid(request: pytest.FixtureRequest) -> tuple[Any, ...]:
    """Valid values of the class that a test is about."""
    return samples(request.param)


def about(*kinds: type[Any]) -> pytest.MarkDecorator:
    """Run a test with valid values of some classes."""
    return pytest.mark.parametrize("valid", kinds, indirect=True, ids=lambda kind: kind.__name__)


@about(*KINDS)
@hostile
@given(data=st.data())
def test_a_document_is_read_or_refused_by_its_name(valid: tuple[Document, ...], data: st.DataObject) -> None:
    """Manifests, specs, receipts, claims and all others; what is read can be written again."""
    one = data.draw(st.sampled_from(valid))
    text = data.draw(hostile_texts(one.to_json()))
    with value_or_error("out/document.json"):
        found = type(one).from_json(text, named="out/document.json")
        assert type(one).from_json(found.to_json(), named="again") == found
        found.to_json().encode()


@about(CursorDocument)
@hostile
@given(data=st.data())
def test_a_variable_is_read_or_refused_by_its_name(
    valid: tuple[CursorDocument, ...], data: st.DataObject
) -> None:
    """People edit them, so no digest protects what is in them."""
    text = data.draw(hostile_texts(data.draw(st.sampled_from(valid)).to_json()))
    with value_or_error("changefeed:1:c:f"):
        CursorDocument.from_json(text, key="changefeed:1:c:f").to_json().encode()


@about(CompletedExport)
@hostile
@given(data=st.data())
def test_an_extra_is_read_or_refused(valid: tuple[CompletedExport, ...], data: st.DataObject) -> None:
    """Anybody who may make an event of an asset, also in Airflow's UI, writes one."""
    good = json.loads(json.dumps(encode(data.draw(st.sampled_from(valid)))))
    extra: Any = data.draw(mutated(good) | _in_texts(good) | VALUES)
    with value_or_error("the event's extra"):
        CompletedExport.from_extra(extra).each()


def _in_texts(valid: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Draw extras whose lists and mappings are texts, as an alias's event has them before Airflow 3.2."""
    names = ("batch", "manifests", "shards", "windows")
    texts = {name: hostile_texts(json.dumps({"": valid[name]})) for name in names}
    return st.fixed_dictionaries(texts).map(lambda drawn: {**valid, **drawn})


_FROM_TEXT: dict[type[Any], Callable[[str], Any]] = {
    ConsumerSpec: lambda text: ConsumerSpec.from_json("c", "f", text),
    CaptureShape: lambda text: read_shape(text.encode(errors="surrogatepass")),
}


@about(*_FROM_TEXT)
@hostile
@given(data=st.data())
def test_what_a_database_or_a_file_says_is_read_or_refused(
    valid: tuple[Any, ...], data: st.DataObject
) -> None:
    """A caller of ``create_consumer:T``, or whoever wrote a Parquet file, chose the text."""
    one = data.draw(st.sampled_from(valid))
    text = data.draw(hostile_texts(json.dumps(encode(one))))
    with value_or_error("the schema's capture", "consumer 'c'"):
        _FROM_TEXT[type(one)](text)


@pytest.mark.parametrize("kind", [CaptureSpec, CompletedExport, CursorDocument, *KINDS])
@hostile
@given(value=VALUES)
def test_any_value_fits_or_is_named(kind: type[Any], value: object) -> None:
    """Whatever the type that is asked for."""
    with value_or_error("it: "):
        decode(kind, value, named="it")
