# SPDX-License-Identifier: Apache-2.0
"""Settings of consumers, as databases store them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_changefeed.core.consumer import ConsumerSpec, OnPoison
from airflow_changefeed.exceptions import InvalidArgumentError

_SPEC = ConsumerSpec("mail", "shop.Order", 3, OnPoison.PARK, timedelta(days=1))


def test_settings_survive_their_json() -> None:
    """Some may be left out."""
    assert ConsumerSpec.from_json("mail", "shop.Order", _SPEC.to_json()) == _SPEC
    assert ConsumerSpec.from_json("mail", "shop.Order", "{}") == ConsumerSpec("mail", "shop.Order")


def test_an_unknown_setting_is_refused_by_its_name() -> None:
    """T-SQL stores what it is given."""
    with pytest.raises(InvalidArgumentError, match=r"'mail': max_attempt is unknown; .*max_attempts"):
        ConsumerSpec.from_json("mail", "shop.Order", '{"max_attempt": 3, "on_poison": "park"}')
