# SPDX-License-Identifier: Apache-2.0
"""JSON documents with kind, schema version and digest."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core import codec
from airflow_changefeed.exceptions import ManifestError, UnsupportedVersionError
from tests.unit.core.strategies import texts

KIND = "changefeed thing"
_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)
_OURS = ("kind", "schema_version", "digest", "is_intact")
_contents = st.dictionaries(texts.filter(lambda name: name not in _OURS), _values, max_size=5)


def _load(text: str, version: int = 2, *, check_digest: bool = True) -> dict[str, object]:
    return codec.load(text, KIND, version, named="here", error=ManifestError, check_digest=check_digest)


@given(_contents, st.sampled_from([None, 2]))
def test_what_was_written_is_read_back(content: dict[str, object], indent: int | None) -> None:
    """Any JSON content comes back, with its version, indented or not."""
    found = _load(codec.dump(KIND, 2, content, indent=indent))
    assert found == {**content, "schema_version": 2, "is_intact": True}


@given(_contents, st.integers(1, 10), st.integers(1, 10))
def test_older_versions_are_read_and_newer_ones_refused(
    content: dict[str, object], written: int, reads: int
) -> None:
    """An upgrade reads what lies there; a version left behind says so instead of guessing."""
    text = codec.dump(KIND, written, content)
    if written <= reads:
        assert _load(text, reads)["schema_version"] == written
    else:
        with pytest.raises(UnsupportedVersionError, match="upgrade airflow-changefeed") as caught:
            _load(text, reads)
        assert (caught.value.facts["found"], caught.value.facts["supported"]) == (written, reads)


@given(_contents, st.data())
def test_a_changed_document_is_damaged(content: dict[str, object], data: st.DataObject) -> None:
    """A changed value is refused, and where a person may edit, it is reported as not intact."""
    document = json.loads(codec.dump(KIND, 1, {"a": 1, **content}))
    name = data.draw(st.sampled_from(sorted(set(document) - {"kind", "schema_version"})))
    document[name] = [document[name]]
    with pytest.raises(ManifestError, match="damaged"):
        _load(json.dumps(document))
    assert _load(json.dumps(document), check_digest=False)["is_intact"] is False


def test_a_newer_version_is_named_before_its_digest_is_judged() -> None:
    """A newer version may count its digest in another way."""
    text = json.dumps({"kind": KIND, "schema_version": 9, "digest": "blake:1"})
    with pytest.raises(UnsupportedVersionError):
        _load(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "1",
        "null",
        "{",
        "{}",
        '{"kind": "other", "schema_version": 1}',
        '{"kind": "changefeed thing"}',
        '{"kind": "changefeed thing", "schema_version": "1"}',
        '{"kind": "changefeed thing", "schema_version": true}',
        '{"kind": "changefeed thing", "schema_version": 0}',
        '{"kind": "changefeed thing", "schema_version": 1.0}',
        '{"kind": "changefeed thing", "schema_version": 1, "x": NaN}',
        '{"kind": "changefeed thing", "schema_version": 1, "x": "\\ud800"}',
        "[" * 100_000,
    ],
)
def test_what_is_no_document_is_refused_with_the_callers_error(text: str) -> None:
    """Each names the document, and the kind that it is not or that it is damaged."""
    with pytest.raises(ManifestError, match="here is"):
        _load(text)


@given(st.text(max_size=60))
def test_any_text_gets_the_callers_error(text: str) -> None:
    """No text fails in a way of its own."""
    with pytest.raises(ManifestError):
        _load(text)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_has_not_are_never_written(value: float) -> None:
    """Other programs must be able to read our documents."""
    with pytest.raises(ValueError, match="JSON"):
        codec.dump(KIND, 1, {"x": value})


def test_text_is_written_as_it_is() -> None:
    """A person who opens a Variable sees letters, not escapes."""
    assert "Zürich 東京" in codec.dump(KIND, 1, {"city": "Zürich 東京"})
