# SPDX-License-Identifier: Apache-2.0
"""All breaks."""

from __future__ import annotations

from tests.mutation.cursors import CURSORS
from tests.mutation.embedded import EMBEDDED
from tests.mutation.mssql import MSSQL
from tests.mutation.output import OUTPUT

BREAKS = (*EMBEDDED, *CURSORS, *OUTPUT, *MSSQL)
