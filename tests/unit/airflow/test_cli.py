# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed``, and ``airflow changefeed``, which Airflow has from 3.2 on."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from argparse import Namespace
from contextlib import closing
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from mssql_python.exceptions import DataError

from airflow_changefeed.cli.changefeed import get_cli_commands, main, parser
from airflow_changefeed.cli.command import FAILED
from airflow_changefeed.cli.command import command as as_command
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.exports import unit_files
from tests.minors import since
from tests.unit.airflow.commands import described, run
from tests.unit.export.flights import FEED, Flights, hours


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExportStore:
    """An export of three hours with thirty events, and the connection to their feed."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(30, 0, shard=1, length=3)
    connection = json.dumps({"conn_type": "sqlite", "host": str(flights.path)})
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", connection)
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    store = ExportStore(str(tmp_path / "out"), FEED)
    flights.export(store, hours(0, 3))
    return store


def verify(store: ExportStore, *more: str) -> int:
    """Verify the export."""
    return run("verify", "--path", store.path, "--feed", FEED, *more)


@since("3.2", "commands of providers")
def test_airflow_finds_the_commands() -> None:
    """By the provider's entry point and its info, without an error or a warning about us."""
    command = [sys.executable, "-m", "airflow", "changefeed", "verify", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    assert "--path-conn-id" in done.stdout
    assert "airflow_changefeed" not in done.stderr


def test_the_script_is_installed() -> None:
    """Under the name that all messages and pages use."""
    (script,) = (
        one for one in distribution("airflow-changefeed").entry_points if one.group == "console_scripts"
    )
    assert script.name == parser().prog
    assert script.load() is main


@since("3.2", "commands of providers")
def test_airflow_parses_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Both parsers take the same definitions."""
    from airflow.cli.cli_parser import get_parser

    for name, _ in described():
        with pytest.raises(SystemExit) as ended:
            get_parser().parse_args(["changefeed", *name.split(), "--help"])
        assert ended.value.code == 0


#: Prints whether help imports Airflow, and what the commands' names import beside that, if it is heavy.
COSTS = """
import sys
from airflow_changefeed.cli.changefeed import get_cli_commands, main
for words in (["cursor", "set", "--help"], ["cursor", "set"], ["--help"]):
    try: main(words)
    except SystemExit: pass
ours = set(sys.modules)
print(any(name.startswith("airflow.") for name in ours))
import airflow.cli.cli_config
before = set(sys.modules) - ours
get_cli_commands()
heavy = {"pyarrow", "pandas", "fsspec", "numpy", "pyspark", "airflow.sdk.definitions", "adbc_driver_sqlite"}
rooms = tuple(f"airflow_changefeed.{room}" for room in ("export", "hooks", "sources"))
print(sorted(name for name in set(sys.modules) - before if name in heavy or name.startswith(rooms)))
"""


def test_the_commands_cost_nothing_until_they_run() -> None:
    """Every call of Airflow's command line imports their names; help does not wait for Airflow's import."""
    environment = {**os.environ, "AIRFLOW_PACKAGE_NAME": "none"}
    command = [sys.executable, "-c", COSTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment)
    assert done.stdout.splitlines()[-2:] == ["False", "[]"]
    assert (done.stdout + done.stderr).count("usage: airflow-changefeed") == 3


def test_every_command_says_what_it_does() -> None:
    """So that help is help."""
    (group,) = get_cli_commands()
    assert group.name == "changefeed"
    assert all(part.help for part in group.subcommands)
    for name, command in described():
        assert command.help, name
        texts = [command.help, command.description, *(one.kwargs["help"] for one in command.args)]
        assert not re.search(r"\b(SHOWN|SEEN|YES|VERBOSE|CONN_ID)\b", " ".join(texts)), name
        assert all(argument.kwargs.get("help") for argument in command.args), name


def test_a_whole_export_ends_with_status_0(
    store: ExportStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing on standard output, a line for people on standard error, where logs are written, too."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(sys.stdout)])
    assert verify(store) == 0
    (handler,) = logging.getLogger().handlers
    assert handler.stream is sys.stderr
    out, err = capsys.readouterr()
    assert out == ""
    assert "3 units with 30 rows in 3 files read; damaged: 0, leftovers: 0" in err


def test_damage_ends_with_status_1_and_is_listed(
    tmp_path: Path, store: ExportStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """For people, who can copy the whole path, with brackets, too; a leftover is reported and no damage."""
    Path(unit_files(store)[1].path).with_name("copy.parquet").write_bytes(b"")
    assert verify(store, "-o", "plain") == 0
    out, _ = capsys.readouterr()
    assert out.split()[:3] == ["severity", "code", "place"]
    assert "copy.parquet" in out
    Path(store.path).rename(tmp_path / "[red]")
    moved = ExportStore(str(tmp_path / "[red]"), FEED)
    path = Path(unit_files(moved)[1].path)
    path.unlink()
    assert verify(moved) == 1
    out, err = capsys.readouterr()
    assert "file-missing" in out
    assert str(path) in out
    assert "damaged: 1" in err


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_programs_get_all_of_a_finding(
    store: ExportStore, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    """As a list, which is empty where nothing was found."""
    assert verify(store, "--output", output) == 0
    load = json.loads if output == "json" else yaml.safe_load
    assert load(capsys.readouterr().out) == []
    path = Path(unit_files(store)[1].path)
    path.unlink()
    assert verify(store, "--output", output) == 1
    (fault,) = load(capsys.readouterr().out)
    assert fault == {
        "severity": "error",
        "code": "file-missing",
        "place": f"{path} of {ExportUnit.of_window(1, hours(1, 2)[0])}",
        "what": "the file is missing",
        "remedy": fault["remedy"],
        "shard": "1",
        "unit": hours(1, 2)[0].name,
        "path": str(path),
    }


def test_a_part_is_verified(store: ExportStore, capsys: pytest.CaptureFixture[str]) -> None:
    """The interval is half-open, the shard may be named; what is missing of it is damage."""
    Path(unit_files(store)[0].path).unlink()
    part = ("--start", "2013-01-01T01:00:00Z", "--end", "2013-01-01T03:00:00Z")
    assert verify(store, *part) == 0
    assert "2 units with 20 rows" in capsys.readouterr().err
    assert verify(store, *part, "--shard", "1", "--shard", "2") == 1
    assert "window-missing" in capsys.readouterr().out


def test_connections_give_storage_options_and_staleness(
    store: ExportStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are Airflow's; one that is not there is named."""
    extra = json.dumps({"conn_type": "generic", "extra": {"auto_mkdir": True}})
    monkeypatch.setenv("AIRFLOW_CONN_DISK", extra)
    assert verify(store, "--path-conn-id", "disk", "--conn-id", "changefeed_default") == 0
    assert verify(store, "--path-conn-id", "nowhere") == 2
    assert "no connection 'nowhere'" in capsys.readouterr().err
    assert verify(store, "--path-conn-id", "changefeed_default") == 2
    assert "is the connection of a feeds' database: pass it as --conn-id" in capsys.readouterr().err


def test_what_cannot_be_verified_ends_with_status_2(
    tmp_path: Path, store: ExportStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told apart from damage, and from a whole export."""
    assert run("verify", "--path", store.path, "--feed", "nyc.Weather") == 2
    assert "no export of feed 'nyc.Weather'" in capsys.readouterr().err
    assert verify(store, "--start", "2013-01-01T01:00:00Z", "--end", "2013-01-01T00:00:00Z") == 2
    assert "ends before it starts" in capsys.readouterr().err
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert run("verify", "--path", str(tmp_path / "loop"), "--feed", FEED) == 2
    assert str(tmp_path / "loop") in capsys.readouterr().err


def test_what_a_server_says_without_a_name_of_ours_is_one_line_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A traceback would end with status 1, as what was found does; a bug of ours still has one."""

    @as_command
    def fail(args: Namespace) -> None:
        raise args.error

    with pytest.raises(SystemExit) as caught:
        fail(Namespace(verbose=False, error=DataError("Numeric value out of range", "Overflow")))
    assert caught.value.code == FAILED
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(KeyError):
        fail(Namespace(verbose=False, error=KeyError("x")))


#: Clears the screen, begins a line, and turns the direction of what follows; the letters stay.
ODD = "\x1b[2Jä\rx\u202e東\x9b"
SHOWN = r"\u001b[2Jä\rx\u202e東\u009b"


@pytest.mark.parametrize("output", ["table", "json", "plain"])
def test_the_name_of_a_file_does_not_lead_the_terminal(
    store: ExportStore, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    """Anybody who can write to the output may have chosen the name, also one that is not valid text."""
    for name in (ODD.encode(), b"\xff"):
        Path(os.fsdecode(os.fsencode(store.layout.data) + b"/" + name + b".parquet")).write_bytes(b"x")
    assert verify(store, "-o", output) < FAILED
    out, err = capsys.readouterr()
    assert output == "json" or SHOWN in out
    assert "udcff" in out
    assert not {"\x1b", "\r", "\u202e", "\x9b"} & {*out, *err}


@pytest.mark.parametrize("name", ["status", "doctor"])
def test_the_name_of_a_feed_does_not_lead_the_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whoever may create tables chooses it; neither what is found nor an error does."""
    path = str(tmp_path / "odd.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for table in (ODD, f"{ODD}2"):
            connection.execute(f'create table "{table}" (id integer primary key)')
            SqliteFeedSource(path).set_up_feed(table)
        connection.execute(f'drop table "{ODD}2"')
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", f"sqlite:///{path}")
    run(name, "--conn-id", "changefeed_default", "-o", "plain")
    out, err = capsys.readouterr()
    assert SHOWN in out
    assert not {"\x1b", "\r", "\u202e", "\x9b"} & {*out, *err}


ULID = "is not a ULID, a time with its zone (2026-03-01T00:00:00Z), earliest or latest"
DURATION = "a length of time above 0 and up to 36525 days (a text such as 90s, 15m, 2h"
SET = "cursor set lake --feed f"
#: What the parser refuses, by the start of a command, and what it says of each of its further words.
REFUSED: dict[str, dict[str, str]] = {
    "verify --path x --feed f": {
        "--start 2013-01-01": "has no time zone",
        "--end soon": "'soon' is not a time",
        "--shard x": "'x' is not a shard",
        "--output xml": "invalid choice: 'xml'",
    },
    "sql": {f"--sequence-cache={cache}": f"'{cache}' is not a whole number" for cache in ("0", "-1", "many")},
    "setup-feed": {
        "": "the following arguments are required: table",
        "t --kind both": "invalid choice: 'both'",
        "t --shard-key-type text": "invalid choice: 'text'",
        "t --time-tolerance=-1": "'-1' is not a length of time, 0 or more",
        "t --time-tolerance nan": "'nan' is not a length of time, 0 or more",
        "t --time-tolerance 60": "(a text such as 90s, 15m, 2h, 1d or PT1H)",
        "t --max-hold 30": "'30' is not a length of time",
        "t --max-hold Forever": "or PT1H), or forever",
        "t --compression zip": "invalid choice: 'zip'",
        "t --resource-version x": "is not a whole number, 1 or more",
    },
    "seal": {
        "--feed f --until 2013-01-01": "has no time zone",
        "--feed f --until soon": "'soon' is not a time",
        "": "required: --feed",
    },
    "purge --feed f": {"": "required: --before", "--before 1969-01-01T00:00:00Z": "before 1970"},
    "read --feed f": {
        "": "required: --shard",
        "--shard x": "'x' is not a shard",
        "--shard 0 --limit 0": "'0' is not a whole number",
        "--shard 0 --start 1:00": "'1:00' is not a time",
        "--shard 0 --start 01ILO": "'01ILO' is not a ULID",
    },
    "status": {
        "--output xml": "invalid choice: 'xml'",
        **{
            f"'--max-age={text}'": DURATION
            for text in ("2", "h", "0h", "-1h", "1.5h", "2w", "2 h", "99999d", "²h", "1" * 5000 + "s")
        },
    },
    SET: {
        "--to yesterday": f"'yesterday' {ULID}",
        "--to 01ARZ3NDEKTSV4RRFFQ69G5FAU": "ABCDEFGHJKMNPQRSTVWXYZ",
        "--to 8ZZZZZZZZZZZZZZZZZZZZZZZZZ": "overflow 128-bits",
        "--to 2013-01-01": "zone",
        "": "required: --to",
        "--to latest --shard x": "'x' is not a shard",
        "--to latest --resource-version": "expected one argument",
        "--to latest --resource-version 0": "'0' is not a whole number, 1 or more",
        "--to latest --resource-version 0=x": "'x' is not a whole number, 1 or more",
        "--to latest --resource-version x=1": "'x' is not a shard",
    },
    "cursor accept-beginning lake --feed f": {"--note ...": "says nothing", "": "required: --note"},
    "consumer create lake --feed f": {
        "--start yesterday": "yesterday",
        "--max-attempts 0": "'0' is not",
        "--keep-log=-1s": "'-1s' is not",
    },
    "consumer revoke lake --feed f": {"": "required: --shard"},
    "capture resolve c": {"": "required: --note"},
    "dead-letters drop 1": {"": "required: --note"},
}


def test_options_that_mean_nothing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """By the parser, with what is wrong."""
    ours = parser()
    for command, cases in REFUSED.items():
        for words, message in cases.items():
            with pytest.raises(SystemExit) as caught:
                ours.parse_args(shlex.split(f"{command} {words}"))
            assert caught.value.code == 2
            assert message in capsys.readouterr().err, (command, words)
