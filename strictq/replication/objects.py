"""A replica in an object store: objects whose names start with a prefix. Needs the extra `remote`.

A segment is written by a conditional put (If-None-Match: *), which the store refuses if another writer was faster. Credentials
and the store's address come from the environment of the process, as for every AWS program, and are never stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from .._platform.extras import need
from .._values import hints
from .._values.errors import InvalidArgument, TargetUnavailable
from .segment_files import PROBE, SegmentFiles, name_of
from .target import TargetOptions

EXTRA: Final = "remote"
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ODD: Final = ("", ".", "..")
REQUESTS_AT_ONCE: Final = 64
_TAKEN: Final = 412
"""HTTP status of a conditional put whose name is taken."""
_BEHIND_THE_END: Final = 416
_NOT_IMPLEMENTED: Final = 501
"""HTTP status of a store that does not support conditional puts."""
_REFUSED: Final = (401, 403)
_NO_CREDENTIALS: Final = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound")


class ObjectTarget(SegmentFiles):
    """See SegmentFiles.

    Args:
        root: bucket and prefix, without a slash at the end.
    """

    def __init__(self, root: str, key: bytes = b"", *, write_once: bool = True) -> None:
        super().__init__(key, write_once=write_once)
        self.root = root
        self._made: Any = None

    @classmethod
    def parsed(cls, scheme: str, rest: str) -> str:
        if "@" in rest:
            raise InvalidArgument("the name of a target must not contain credentials", hint=hints.STORE_CREDENTIALS)
        bucket, *parts = rest.removeprefix("//").rstrip("/").split("/")
        if not rest.startswith("//") or not _BUCKET.fullmatch(bucket):
            raise InvalidArgument(f"{scheme}:{rest} has no bucket", hint=hints.TARGET_IS)
        if any(part in _ODD or not part.isprintable() or set(part) & set("*?[#") for part in parts):
            raise InvalidArgument(
                f"{scheme}:{rest}: a prefix must not have empty parts, '.', '..' or any of *?[#", hint=hints.TARGET_IS
            )
        return f"{scheme}://{'/'.join((bucket, *parts))}"

    @classmethod
    def named(cls, name: str, key: bytes, options: TargetOptions) -> ObjectTarget:
        return cls(name.partition("://")[2], key, write_once=options.write_once)

    def __str__(self) -> str:
        return f"s3://{self.root}"

    @property
    def _fs(self) -> Any:
        """The client, created at the first use, in the thread and process that use it.

        Raises:
            MissingExtra: its package is not installed.
        """
        if self._made is None:
            need("s3fs", EXTRA)
            import s3fs

            # No cache of listings, because another process may write. No shared instance, which the program may have
            # configured.
            self._made = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
        return self._made

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _listed(self) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = self._fs.ls(self.root, detail=True, refresh=True)
        except FileNotFoundError as e:
            if e.__cause__ is not None:
                raise  # the store's answer: there is no such bucket
            return []  # a prefix without objects
        return [entry for entry in found if entry["name"] != self.root]

    def names(self) -> list[str]:
        return [entry["name"][len(self.root) + 1 :] for entry in self._listed()]

    def read(self, name: str, most: int) -> bytes:
        (found,) = self.read_many([name], most)
        if isinstance(found, Exception):
            raise found
        return found

    def read_many(self, names: list[str], most: int) -> Iterator[bytes | Exception]:
        paths = [self._path(name) for name in names]
        found: list[bytes | Exception] = self._fs.cat_ranges(paths, 0, most, batch_size=REQUESTS_AT_ONCE, on_error="return")
        for each in found:
            yield b"" if isinstance(each, OSError) and _status(each) == _BEHIND_THE_END else each  # an empty object

    def exists(self, name: str) -> bool:
        return self.written_at(name) is not None

    def create(self, name: str, data: bytes) -> bool:
        if not self.write_once:  # the caller has checked the name; some stores refuse conditional puts altogether
            self.replace(name, data)
            return True
        try:
            self._fs.pipe_file(self._path(name), data, mode="create")
        except FileExistsError:
            return False
        except OSError as e:
            if _status(e) == _TAKEN:
                return False
            raise
        return True

    def is_write_once(self) -> bool:
        self.write_once = True
        with self.reached("it can't be written"):
            try:
                return super().is_write_once()
            except TargetUnavailable as e:
                if e.__cause__ is None or _status(e.__cause__) != _NOT_IMPLEMENTED:
                    raise
                self.remove([PROBE])
                return False

    def replace(self, name: str, data: bytes) -> None:
        self._fs.pipe_file(self._path(name), data)

    def remove(self, names: list[str]) -> None:
        if names:
            self._fs.rm([self._path(name) for name in names])

    def written_at(self, name: str) -> float | None:
        try:
            return float(self._fs.info(self._path(name), refresh=True)["LastModified"].timestamp())
        except FileNotFoundError:
            return None

    def stored_bytes(self, numbers: Iterable[int]) -> int:
        wanted = {self._path(name_of(n)) for n in numbers}
        with self.reached("it can't be read"):
            return sum(entry["size"] for entry in self._listed() if entry["name"] in wanted)

    def translated(self, what: str, error: Exception) -> TargetUnavailable:
        if type(error).__name__ in _NO_CREDENTIALS:
            return TargetUnavailable(f"{self}: {what}: {error}", str(self), hint=hints.STORE_CREDENTIALS, transient=False)
        if isinstance(error, PermissionError) or _status(error) in _REFUSED:
            return TargetUnavailable(
                f"{self}: {what}: the store refuses it: {error}", str(self), hint=hints.STORE_CREDENTIALS, transient=False
            )
        if isinstance(error, FileNotFoundError):
            bucket = self.root.partition("/")[0]
            return TargetUnavailable(f"{self}: {what}: there is no bucket {bucket}, or no such object: {error}", str(self))
        return TargetUnavailable(f"{self}: {what}: {error}", str(self))


def _status(error: BaseException) -> int | None:
    """Return the HTTP status behind an error of s3fs, or None."""
    response = getattr(error.__cause__, "response", None) or getattr(error, "response", None)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    return status if isinstance(status, int) else None
