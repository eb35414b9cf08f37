# SPDX-License-Identifier: Apache-2.0
"""Object stores on loopback, each behind a proxy of its own, and how to open outputs in them."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_changefeed.storage.files import Files, open_files
from airflow_changefeed.storage.remote import RemoteFiles
from tests.stores.proxy import Proxy

BUCKET = "changefeed-tests"
#: Azurite's well-known account; its key is in its documentation, and opens nothing else.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_SECONDS = 60.0


@dataclass(frozen=True)
class Server:
    """
    A store that runs.

    :param root: of outputs in it, as an fsspec URL.
    :param options: for fsspec, through the proxy.
    :param direct: the same without it: faster.
    """

    kind: str
    root: str
    options: Mapping[str, Any]
    direct: Mapping[str, Any]
    proxy: Proxy

    def files(self, name: str | None = None, *, proxied: bool = True, **more: Any) -> RemoteFiles:
        """Return a new output, or one of a name; with more options, where given."""
        options = self.options if proxied else self.direct
        files = open_files(f"{self.root}/{name or uuid.uuid4().hex}", {**options, **more})
        assert isinstance(files, RemoteFiles)
        return files

    def new(self) -> Files:
        """Return a new output that no proxy stands before."""
        return self.files(proxied=False)


@contextmanager
def _proxied(port: int) -> Iterator[Proxy]:
    proxy = Proxy(port)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()


def _let_moto_know_uploads() -> None:
    """Let moto answer as S3 does where an upload is over: it fails with a KeyError, which is a 500."""
    from moto.s3.exceptions import NoSuchUpload
    from moto.s3.models import S3Backend

    def checked(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, bucket_name: str, multipart_id: str, *arguments: Any, **more: Any) -> Any:
            if multipart_id not in self.get_bucket(bucket_name).multiparts:
                raise NoSuchUpload(upload_id=multipart_id)
            return inner(self, bucket_name, multipart_id, *arguments, **more)

        return call

    for name in ("upload_part", "complete_multipart_upload"):
        setattr(S3Backend, name, checked(getattr(S3Backend, name)))


@contextmanager
def s3() -> Iterator[Server]:
    """S3 by moto, in a thread of this process."""
    from moto.server import ThreadedMotoServer

    _let_moto_know_uploads()
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        with _proxied(server.get_host_and_port()[1]) as proxy:
            options = {
                "key": "tests",
                "secret": "tests-only",
                "endpoint_url": proxy.url,
                "client_kwargs": {"region_name": "us-east-1"},
                "config_kwargs": {"retries": {"max_attempts": 1}},
            }
            files = open_files(f"s3://{BUCKET}", options)
            assert isinstance(files, RemoteFiles)
            files.system.call_s3("create_bucket", Bucket=BUCKET)
            direct = {**options, "endpoint_url": f"http://127.0.0.1:{proxy.upstream}"}
            yield Server("s3", f"s3://{BUCKET}", options, direct, proxy)
    finally:
        server.stop()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def _process(arguments: list[str], port: int) -> Iterator[None]:
    """Run a server, and wait until it listens."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + _SECONDS
        while True:
            assert process.poll() is None, f"{arguments[0]} ended with status {process.returncode}"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < until, f"{arguments[0]} does not listen after {_SECONDS:.0f} seconds"
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(20)


def program(name: str, folder: str) -> str:
    """Return where a server's program is: below build/stores, where `make stores` puts it, or on PATH."""
    own = Path("build/stores") / folder / name
    found = str(own) if own.exists() else shutil.which(name)
    assert found, f"{name} is not installed: run `make stores`, which installs it, or put it on PATH"
    return os.path.abspath(found)


@contextmanager
def azure(folder: Path) -> Iterator[Server]:
    """Azure's blobs by Azurite."""
    port = _free_port()
    arguments = [program("azurite-blob", "node_modules/.bin"), "--silent", "--skipApiVersionCheck"]
    arguments += ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    with _process(arguments, port), _proxied(port) as proxy:
        text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
        text += f"BlobEndpoint={proxy.url}/{ACCOUNT};"
        options = {"connection_string": text}
        files = open_files(f"abfs://{BUCKET}", options)
        assert isinstance(files, RemoteFiles)
        files.system.mkdir(BUCKET)
        direct = {"connection_string": text.replace(proxy.url, f"http://127.0.0.1:{port}")}
        yield Server("azure", f"abfs://{BUCKET}", options, direct, proxy)


def _let_gcsfs_know_buckets() -> None:
    """Let gcsfs take buckets for flat: it asks by gRPC, which fake-gcs-server has not, a minute each time."""
    from gcsfs.extended_gcsfs import BucketType, ExtendedGcsFileSystem

    async def flat(self: Any, bucket: str) -> Any:
        return BucketType.NON_HIERARCHICAL

    ExtendedGcsFileSystem._get_bucket_type = flat


@contextmanager
def google(folder: Path) -> Iterator[Server]:
    """Google Cloud Storage by fake-gcs-server."""
    _let_gcsfs_know_buckets()
    port = _free_port()
    arguments = [program("fake-gcs-server", "bin"), "-scheme", "http", "-host", "127.0.0.1"]
    arguments += ["-port", str(port), "-backend", "memory"]
    with _process(arguments, port), _proxied(port) as proxy:
        options = {"endpoint_url": proxy.url, "token": "anon", "project": "tests"}
        files = open_files(f"gs://{BUCKET}", options)
        assert isinstance(files, RemoteFiles)
        files.system.mkdir(BUCKET)
        direct = {**options, "endpoint_url": f"http://127.0.0.1:{port}"}
        yield Server("google", f"gs://{BUCKET}", options, direct, proxy)


#: Makes new outputs.
Outputs = Callable[[], Files]
