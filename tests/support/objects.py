"""An object store on this machine: moto's S3 server, behind a proxy that breaks its promises."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from werkzeug.serving import make_server

BUCKET = "replicas"
Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class ObjectStore:
    """The proxy in front of the server.

    Attributes:
        ignores_conditions: like older stores, it overwrites although a put says If-None-Match.
        refuses_conditions: like other ones, it fails such a put.
        refuse: the method and a part of the path that are answered with `status`, while it is set.
        hold: requests wait while it is cleared.
    """

    def __init__(self, behind: Application) -> None:
        self._behind = behind
        self.ignores_conditions = False
        self.refuses_conditions = False
        self.refuse: tuple[str, str] | None = None
        self.status = "403 Forbidden"
        self.hold = threading.Event()
        self.hold.set()

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.hold.wait()
        if self.ignores_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if self.refuses_conditions and "HTTP_IF_NONE_MATCH" in environ:
            start("501 Not Implemented", [("Content-Length", "0")])
            return [b""]
        if self.refuse is not None and method == self.refuse[0] and self.refuse[1] in path:
            start(self.status, [("Content-Length", "0")])
            return [b""]
        return self._behind(environ, start)


@functools.cache
def _server() -> Application:
    """Return moto's server. To make it takes as long as most tests, and its state is the backend's."""
    from moto.server import DomainDispatcherApplication, create_backend_app

    return DomainDispatcherApplication(create_backend_app)  # type: ignore[no-any-return]


@contextmanager
def object_store(patch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Serve an empty bucket, and point the environment to it."""
    from moto.backends import get_backend
    from moto.core.models import DEFAULT_ACCOUNT_ID

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    backend = get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"]
    backend.reset()
    store = ObjectStore(_server())
    server = make_server("127.0.0.1", 0, store, threaded=True)
    server.daemon_threads = True  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "NO_PROXY": "127.0.0.1",
    }.items():  # fmt: skip
        patch.setenv(name, value)
    try:
        backend.create_bucket(BUCKET, "us-east-1")
        yield store
    finally:
        store.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()
        backend.reset()


def stored(prefix: str) -> dict[str, bytes]:
    """Return the bucket's contents with this prefix, without the client under test."""
    from moto.backends import get_backend
    from moto.core.models import DEFAULT_ACCOUNT_ID

    bucket = get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"].buckets.get(BUCKET)
    return {} if bucket is None else {name: key.value for name, key in bucket.keys.items() if name.startswith(prefix)}


def delete_bucket() -> None:
    """Delete the bucket, as an operator may."""
    from moto.backends import get_backend
    from moto.core.models import DEFAULT_ACCOUNT_ID

    backends = get_backend("s3")
    backends[DEFAULT_ACCOUNT_ID]["aws"].buckets.pop(BUCKET)
    backends.bucket_accounts.pop(BUCKET)


def change(name: str, data: bytes) -> None:
    """Overwrite an object without the store's knowledge."""
    from moto.backends import get_backend
    from moto.core.models import DEFAULT_ACCOUNT_ID

    get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"].put_object(BUCKET, name, data)
