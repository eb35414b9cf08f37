# SPDX-License-Identifier: Apache-2.0
"""The package as a Python archive for ``--py-files``, so that executors need no installation."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
import zipfile
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

from airflow_changefeed.core.values import shown
from airflow_changefeed.exceptions import OutputError, SparkEnvironmentError
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.storage.local import unfinished

log = logging.getLogger(__name__)

_PACKAGES = ("airflow_changefeed", "ulid", "tenacity", "packaging")
# What python-ulid imports before Python 3.12; a single file.
_MODULES = ("typing_extensions",)
_DISTRIBUTION = "python-ulid"
_SUFFIXES = (".py", ".sql", ".json", ".typed")
# The oldest time that a zip file can hold: the same content gives the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


def package_archive(folder: str | None = None) -> str:
    """
    Return the path of a zip of this package, its SQL, and what it needs in pure Python; made once for each
    content.

    pyarrow, numpy, fsspec and the source's driver hold machine code and must be on the executors.

    :param folder: where archives are kept; None for one of this user's own in the temporary folder.
    :raises SparkEnvironmentError: others can write to the folder.
    """
    content = dict(sorted(_content().items()))
    digest = hashlib.sha256()
    for name, data in content.items():
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    home = Path(folder) if folder else _own_folder()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = home / f"airflow_changefeed-{digest.hexdigest()[:16]}.zip"
    if not path.exists():
        _write(path, content)
    return str(path)


def store_program(store: ExportStore) -> tuple[str, str]:
    """
    Put the job's file and the package's archive where a cluster finds them.

    A cluster runs what it fetches from there, with the job's secrets. So what is there is compared byte by
    byte each time, and nothing may lie beside it: Python imports modules from the folder of the file it runs.
    A user who can write there between this and the fetch still runs code.

    :param store: below whose path they go.
    :return: their URIs.
    :raises OutputError: something else lies in their folder.
    """
    archive = Path(package_archive())
    folder = f"{store.layout.programs}/{archive.stem}"
    program = {"job.py": Path(__file__).with_name("job.py").read_bytes(), archive.name: archive.read_bytes()}
    strange = [name for name in store.files.names(folder) if (unfinished(name) or name) not in program]
    if strange:
        raise OutputError(
            f"{folder} holds {', '.join(map(shown, strange))}, which Python could import in place of "
            "its own modules when it runs the job there. Remove the files that are not the job's, and "
            "find out who put them there",
            path=folder,
        )
    for name, content in program.items():
        found = store.files.read(f"{folder}/{name}")
        if found == content:
            continue
        if found is not None:
            log.warning(
                "%s differed from the file of this version of the package, and is replaced. Unless an "
                "earlier write was interrupted, somebody else can write there, and may have run code "
                "with the jobs' secrets: restrict who can write there",
                f"{folder}/{name}",
            )
        store.files.write(f"{folder}/{name}", content)
    job, package = (store.files.url(f"{folder}/{name}") for name in program)
    return job, package


def _own_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"airflow_changefeed-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    # Its content runs on executors with our rights.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise SparkEnvironmentError(
            f"{folder} is not a folder that only this user can write to; remove it, or set TMPDIR"
        )
    return folder


def _content() -> dict[str, bytes]:
    content: dict[str, bytes] = {}
    for package in _PACKAGES:
        spec = find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            for path in Path(root).rglob("*"):
                if path.suffix in _SUFFIXES and "__pycache__" not in path.parts and path.is_file():
                    content[f"{package}/{path.relative_to(root).as_posix()}"] = path.read_bytes()
    for module in _MODULES:
        spec = find_spec(module)
        if spec is not None and spec.origin is not None:
            content[f"{module}.py"] = Path(spec.origin).read_bytes()
    # python-ulid asks for its own version when it is imported.
    metadata = distribution(_DISTRIBUTION)
    name = f"{_DISTRIBUTION.replace('-', '_')}-{metadata.version}.dist-info/METADATA"
    content[name] = (metadata.read_text("METADATA") or "").encode()
    return content


def _write(path: Path, content: dict[str, bytes]) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(zipfile.ZipInfo(name, _TIME), data, zipfile.ZIP_DEFLATED)
    # Two processes may write it at once: both write the same bytes.
    os.replace(temporary, path)
