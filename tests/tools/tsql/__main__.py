# SPDX-License-Identifier: Apache-2.0
"""Make ``python -m tests.tools.tsql`` run the check."""

import sys

from tests.tools.tsql.check import main

sys.exit(main())
