# SPDX-License-Identifier: Apache-2.0
"""
Access of ``pyiceberg`` to an output: by the same file system, with the same credentials, as the export's.

A leaf module: ``pyiceberg`` imports it by name when a catalog is loaded.
"""

from __future__ import annotations

import uuid
import weakref
from typing import Any

from pyiceberg.io.fsspec import FsspecFileIO

from airflow_changefeed.storage.files import Files
from airflow_changefeed.storage.remote import RemoteFiles

_SYSTEM = "changefeed.file-system"
_systems: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


class OutputIO(FsspecFileIO):
    """The files of one output; whatever has another scheme is opened as the catalog's properties say."""

    def get_fs(self, scheme: str, hostname: str | None = None) -> Any:
        """Return the file system of a scheme."""
        system = _systems.get(str(self.properties.get(_SYSTEM)))
        protocols = getattr(system, "protocol", ())
        is_ours = scheme in ((protocols,) if isinstance(protocols, str) else protocols)
        return system if is_ours else super().get_fs(scheme, hostname)


def io_properties(files: Files) -> dict[str, str]:
    """Return the properties of a catalog that opens an output's files; none for those on local disks."""
    if not isinstance(files, RemoteFiles):
        return {}
    name = next((name for name, system in _systems.items() if system is files.system), uuid.uuid4().hex)
    _systems[name] = files.system
    return {"py-io-impl": f"{OutputIO.__module__}.{OutputIO.__qualname__}", _SYSTEM: name}
