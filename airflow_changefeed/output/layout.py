# SPDX-License-Identifier: Apache-2.0
"""The paths of an export, as strings, without I/O (docs/adr/0002-output-layout.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_changefeed.core.feed import Shard, parse_shard, quote_name, shard_text, unquote_name
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.storage.local import CONTROL

#: Folders of table formats in a feed's data: the log of Delta Lake, and the metadata of Iceberg.
DELTA_LOG, ICEBERG_FILES = "_delta_log", "_iceberg"
METADATA_FOLDERS = (DELTA_LOG, ICEBERG_FILES)

_TOKEN_DIGITS = 12
#: The highest attempt token that a database can have given, as both count in 64 bits.
MOST_TOKEN = (1 << 63) - 1
# No feed's name begins with "_".
_JOBS = "_jobs"
_RECEIPT = re.compile(r"result\.(\d+)\.json")
_FILE = re.compile(
    r"changefeed_shard=(?P<shard>[^/]+)/changefeed_date=[^/]+/changefeed_unit=(?P<unit>[^/]+)/"
    r"changefeed_attempt=(?P<attempt>\d+)/(?P<name>[^/]+\.parquet)"
)
_MANIFEST = re.compile(r"(.+)\.(\d+)\.json")
_PLACED = "changefeed_attempt="


def token_text(attempt: int) -> str:
    """Write an attempt token with leading zeros, so that names sort as tokens do."""
    return f"{attempt:0{_TOKEN_DIGITS}d}"


def parse_token(text: str) -> int | None:
    """Parse an attempt token, with zeros before it or not; None for what no database can have given."""
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(MOST_TOKEN)):
        return None
    token = int(text)
    return token if token <= MOST_TOKEN else None


def parse_token_text(text: str) -> int | None:
    """Parse what :func:`token_text` wrote; None for any other spelling, whose file has another path."""
    token = parse_token(text)
    return token if token is not None and token_text(token) == text else None


def parse_shard_text(text: str) -> Shard | None:
    """
    Parse the shard in a name; None if it is not one, or is spelled in another way, as ``03``: it would be a
    second folder of the same shard.
    """
    try:
        shard = parse_shard(text)
    except InvalidArgumentError:
        return None
    return shard if shard_text(shard) == text else None


def unit_key(unit: ExportUnit) -> str:
    """Return a unit's own key within its feed: ``shard=0/20130101T000000Z_20130101T010000Z``."""
    return f"shard={shard_text(unit.shard)}/{unit.name}"


def parse_unit(shard: Shard, name: str) -> ExportUnit | None:
    """Parse a unit's name; None if it is not one, or is spelled in another way."""
    try:
        first, _, second = name.partition("_")
        if len(first) == 26 and len(second) == 26:
            unit = ExportUnit(shard, UlidRange(Ulid.parse_text(first), Ulid.parse_text(second)))
        else:
            unit = ExportUnit.of_window(shard, Window.parse_name(name))
    except InvalidArgumentError:
        return None
    return unit if unit.name == name else None


def parse_unit_key(key: str) -> ExportUnit | None:
    """Parse what :func:`unit_key` wrote; None if it is not one."""
    shard, _, name = key.removeprefix("shard=").partition("/")
    try:
        return parse_unit(parse_shard(shard), name)
    except InvalidArgumentError:
        return None


@dataclass(frozen=True)
class ManifestName:
    """The name of a manifest: its unit and its attempt."""

    unit: str
    attempt: int

    @classmethod
    def parse(cls, name: str) -> ManifestName | None:
        """Parse the name of a manifest; None if it is not one."""
        match = _MANIFEST.fullmatch(name)
        token = parse_token_text(match[2]) if match else None
        return cls(match[1], token) if match and token is not None else None

    def __str__(self) -> str:
        return f"{self.unit}.{token_text(self.attempt)}.json"


def receipt_attempt(name: str) -> int | None:
    """Return the attempt token in the name of a receipt; None if it is not one."""
    match = _RECEIPT.fullmatch(name)
    return parse_token_text(match[1]) if match else None


def is_document(kind: str, path: str) -> bool:
    """Whether a file in the folder ``attempts`` or ``specs`` is a document of an attempt or a job."""
    _, _, name = path.partition("/")
    if kind == "attempts":
        return name == "start.json"
    return kind == "specs" and (name in ("spec.json", "finished.json") or receipt_attempt(name) is not None)


def parse_job(uri: str) -> tuple[str, str] | None:
    """Parse the URI of a job of several specs: the root of the output, its name; None if it is not one."""
    root, _, rest = uri.rpartition(f"/{CONTROL}/{_JOBS}/")
    name, _, suffix = rest.rpartition(".")
    return (root, name) if root and name and "/" not in name and suffix == "json" else None


def parse_spec(uri: str) -> tuple[str, str, int]:
    """Parse a spec's URI: root, feed, and the plan's token; raise InvalidArgumentError if it is not one."""
    root, _, rest = uri.rpartition(f"/{CONTROL}/")
    parts = rest.split("/")
    token = parse_token(parts[2]) if len(parts) == 4 else None
    if root and token is not None and parts[1] == "specs" and parts[3] == "spec.json":
        return root, unquote_name(parts[0]), token
    raise InvalidArgumentError(
        f"{uri!r} is not the URI of a spec; expected <path>/{CONTROL}/<feed>/specs/<token>/spec.json"
    )


def placed_attempt(name: str) -> int | None:
    """Return the attempt token in the name of a placed folder; None if it is not one."""
    token = parse_token(name.removeprefix(_PLACED)) if name.startswith(_PLACED) else None
    return token if name == f"{_PLACED}{token}" else None


def parse_file(path: str) -> tuple[ExportUnit, int, str] | None:
    """Parse a placed file's path in the folder of the data: unit, attempt, name; None if it is not one."""
    match = _FILE.fullmatch(path)
    shard = parse_shard_text(match["shard"]) if match else None
    if match is None or shard is None:
        return None
    unit, attempt = parse_unit(shard, match["unit"]), placed_attempt(f"{_PLACED}{match['attempt']}")
    return (unit, attempt, match["name"]) if unit is not None and attempt is not None else None


@dataclass(frozen=True)
class Layout:
    """The paths of a feed's export below a root, which has no slash at its end."""

    path: str
    feed: str

    @property
    def data(self) -> str:
        """Folder that plain Parquet readers read: only placed units live below it."""
        return f"{self.path}/{quote_name(self.feed)}"

    @property
    def control(self) -> str:
        """Folder of everything else."""
        return f"{self.path}/{CONTROL}/{quote_name(self.feed)}"

    @property
    def claim(self) -> str:
        """Document that claims the output for the feed."""
        return f"{self.control}/feed.json"

    @property
    def manifests(self) -> str:
        """Folder of all manifests."""
        return f"{self.control}/manifests"

    @property
    def programs(self) -> str:
        """Folder of what jobs run, where the path is that of programs; no feed's name begins with ``_``."""
        return f"{self.path}/{CONTROL}/_programs"

    @property
    def jobs(self) -> str:
        """Folder of the documents of jobs that export several feeds, shared by all feeds below the path."""
        return f"{self.path}/{CONTROL}/{_JOBS}"

    def job(self, name: str) -> str:
        """Document that names the specs of a job."""
        return f"{self.jobs}/{name}.json"

    @property
    def attempts(self) -> str:
        """Folder of all attempts."""
        return f"{self.control}/attempts"

    def shard_manifests(self, shard: Shard) -> str:
        """Folder of a shard's manifests, with one folder for each UTC date in it."""
        return f"{self.manifests}/shard={shard_text(shard)}"

    def unit_manifests(self, unit: ExportUnit) -> str:
        """Folder of a unit's manifests, shared with the other units of the date."""
        return f"{self.shard_manifests(unit.shard)}/date={unit.date}"

    def manifest(self, unit: ExportUnit, attempt: int) -> str:
        """Path of a manifest."""
        return f"{self.unit_manifests(unit)}/{ManifestName(unit.name, attempt)}"

    def unit(self, unit: ExportUnit) -> str:
        """Folder of a unit's placed data; holds one attempt's folder, or is being replaced."""
        shard = shard_text(unit.shard)
        return f"{self.data}/changefeed_shard={shard}/changefeed_date={unit.date}/changefeed_unit={unit.name}"

    def placed(self, unit: ExportUnit, attempt: int) -> str:
        """Folder of an attempt's placed files."""
        return f"{self.unit(unit)}/changefeed_attempt={attempt}"

    def attempt(self, attempt: int) -> str:
        """Folder of an attempt."""
        return f"{self.attempts}/{token_text(attempt)}"

    def unplaced_unit(self, unit: ExportUnit, attempt: int) -> str:
        """
        Folder that becomes :meth:`unit` by a rename, and to which an attempt's files go when they are
        replaced.
        """
        return f"{self.attempt(attempt)}/{unit_key(unit)}"

    def unplaced(self, unit: ExportUnit, attempt: int) -> str:
        """Folder of an attempt's files that are not placed yet, or no longer."""
        return f"{self.unplaced_unit(unit, attempt)}/changefeed_attempt={attempt}"

    def writing(self, attempt: int) -> str:
        """Folder in which each task attempt has its own, so that duplicates and leftovers never mix."""
        return f"{self.attempt(attempt)}/writing"

    def start(self, attempt: int) -> str:
        """Document that says who began an attempt, and what it writes."""
        return f"{self.attempt(attempt)}/start.json"

    @property
    def specs(self) -> str:
        """Folder of all specs: apart from attempts, so that keeping them costs an attempt nothing."""
        return f"{self.control}/specs"

    def spec_folder(self, spec: int) -> str:
        """Folder of a job's documents, by the token of its plan."""
        return f"{self.specs}/{token_text(spec)}"

    def spec(self, spec: int) -> str:
        """Document with what a job is to do: a plan."""
        return f"{self.spec_folder(spec)}/spec.json"

    def receipt(self, spec: int, attempt: int) -> str:
        """Document that says how a start of a job ended, by the token of its plan and its own."""
        return f"{self.spec_folder(spec)}/result.{token_text(attempt)}.json"

    def finished(self, spec: int) -> str:
        """Document that says that the task has finished whose job it was."""
        return f"{self.spec_folder(spec)}/finished.json"
