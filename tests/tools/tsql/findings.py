# SPDX-License-Identifier: Apache-2.0
"""What is compiled and what is found; plain values that cross the border between the two processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# The compiler's words for SQL Server 2017 and Azure SQL Database.
OLDEST = "Sql140"
AZURE = "SqlAzure"


@dataclass(frozen=True)
class Text:
    """
    One batch of T-SQL.

    :param name: the file or object that findings name.
    :param sql: the batch, without ``go``.
    :param holds_templates: its string literals are templates, so ``<<tokens>>`` may stand in them.
    """

    name: str
    sql: str
    holds_templates: bool = False


@dataclass(frozen=True)
class Job:
    """
    What is compiled together, as one database.

    :param texts: in any order; references may go forward.
    :param temporary: temporary tables that the caller makes, ``#name`` to the columns in parentheses.
    :param rules: false leaves the static rules out, for what is not ours.
    :param server: ``OLDEST`` or ``AZURE``; what it lacks is reported.
    """

    texts: tuple[Text, ...]
    temporary: Mapping[str, str] = field(default_factory=dict)
    rules: bool = True
    server: str = OLDEST

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Job:
        """Read what :meth:`to_json` gave."""
        return cls(**{**document, "texts": tuple(Text(**text) for text in document["texts"])})


@dataclass(frozen=True, order=True)
class Finding:
    """
    One thing that is wrong.

    :param name: of the text.
    :param line: from 1, in that text.
    :param rule: ``syntax``, ``reference``, or a static rule's name.
    """

    name: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}, line {self.line}: {self.rule}: {self.message}"


@dataclass(frozen=True)
class Result:
    """
    What came out of a job.

    :param objects: how many objects the model holds; none would mean that nothing was checked.
    """

    findings: tuple[Finding, ...]
    objects: int

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Result:
        """Read what :meth:`to_json` gave."""
        findings = tuple(Finding(**finding) for finding in document["findings"])
        return cls(findings, document["objects"])
