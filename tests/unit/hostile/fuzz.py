# SPDX-License-Identifier: Apache-2.0
"""
Fuzz what reads documents of others, guided by coverage: ``make fuzz``.

atheris chooses the bytes from which the properties of ``test_documents`` draw, and keeps those that reach new
lines of the package. What it finds stays beside its corpus as ``crash-*``; name the file to run it again.
"""

from __future__ import annotations

import sys

import atheris
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

with atheris.instrument_imports(include=["airflow_changefeed"]):
    from airflow_changefeed.core.capture import CaptureShape
    from airflow_changefeed.core.consumer import ConsumerSpec
    from airflow_changefeed.core.cursor import CursorDocument
    from airflow_changefeed.export.completed import CompletedExport
    from tests.unit.hostile import test_documents as tests
    from tests.unit.hostile.valid import samples

#: Each property, and the class whose valid values it starts from.
PROPERTIES = [
    *((tests.test_a_document_is_read_or_refused_by_its_name, kind) for kind in tests.KINDS),
    (tests.test_a_variable_is_read_or_refused_by_its_name, CursorDocument),
    (tests.test_an_extra_is_read_or_refused, CompletedExport),
    (tests.test_what_a_database_or_a_file_says_is_read_or_refused, ConsumerSpec),
    (tests.test_what_a_database_or_a_file_says_is_read_or_refused, CaptureShape),
]
# Drawn before the first round, as they do not depend on its bytes.
VALID = [(test.hypothesis.inner_test, samples(kind)) for test, kind in PROPERTIES]  # type: ignore[attr-defined]


@settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def any_property(data: st.DataObject) -> None:
    """Run one of the properties."""
    test, valid = data.draw(st.sampled_from(VALID))
    test(valid, data)


def main() -> None:
    """Fuzz, with the options of libFuzzer."""
    atheris.Setup(sys.argv, any_property.hypothesis.fuzz_one_input)  # type: ignore[attr-defined]
    atheris.Fuzz()


if __name__ == "__main__":
    main()
