"""The crash matrix on an object store: what crash_matrix.py does, with faults at requests that change the store.

    python tests/torture/crash_matrix_s3.py DIRECTORY --points 200 --seed 7

Starts tests/s3_server.py. An operation is a request of the s3fs driver that writes or removes. Each point kills
before or after request k, lets it fail, stops the run there while a rival on what looks like another machine does all
the work, or loses the answer: "lost", where the store has done it and the caller gets an error, and "again", where the
driver has repeated the request, as it does by itself, so that a conditional put meets its own first try.
"""

import contextlib
import errno
import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from crash_matrix import Fault, Place, main

from marin.execution.status import ATTEMPTS_NAME, COMMIT_NAME

_CHANGES = {"put_object", "delete_object", "delete_objects", "copy_object", "create_multipart_upload", "upload_part"}
_CHANGES |= {"complete_multipart_upload"}


class S3Place(Place):
    """A prefix of its own in the bucket."""

    kills = ("before", "after")

    @staticmethod
    def faults(operations: list[str]) -> Iterator[Fault]:
        for number, _ in enumerate(operations, start=1):
            yield from (Fault(kind, number) for kind in ("before", "after", "stop", "EIO", "lost", "again"))

    def __init__(self, directory: pathlib.Path):
        super().__init__(directory)
        self._key = secrets.token_hex(8)
        self.prefix = f"s3://bucket/{self._key}"

    def install(self, fault: Fault | None, trace: list[str] | None) -> None:
        from s3fs.core import S3FileSystem

        real, count = S3FileSystem._call_s3, 0

        async def call(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
            nonlocal count
            if method not in _CHANGES:
                return await real(self, method, *arguments, **options)
            count += 1
            if trace is not None:
                trace.append(method)
            if fault is None or count != fault.at:
                return await real(self, method, *arguments, **options)
            if fault.kind == "EIO":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if fault.kind == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
                return await real(self, method, *arguments, **options)
            if fault.kind != "before":
                answer = await real(self, method, *arguments, **options)
            if fault.kind == "lost":
                raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            if fault.kind == "again":
                return await real(self, method, *arguments, **options) or answer
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("dead")

        S3FileSystem._call_s3 = call

    def read(self, label: str, name: str) -> bytes | None:
        usual = next((key.partition("/")[0] for key in _keys(f"{self._key}/crash/{label}-")), None)
        if usual is None:
            return None
        # The status stands at the usual path, all other files where the commit says.
        with contextlib.suppress(FileNotFoundError):
            if name.startswith(".executor_status"):
                return _get(f"{self._key}/crash/{label}-{usual}/{name}")
            location = json.loads(_get(f"{self._key}/crash/{label}-{usual}/{COMMIT_NAME}"))["location"]
            return _get(f"{location.removeprefix('s3://bucket/')}/{name}")
        return None

    def is_attempt(self, label: str) -> bool:
        return self.read(label, "data") is None

    def ledger(self, label: str) -> list[bytes]:
        start = f"{self._key}/crash/{ATTEMPTS_NAME}/{label}-"
        return [_get(start + key) for key in _keys(start) if "/ledger/" in key]


def _client() -> Any:
    import boto3

    return boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])


def _keys(start: str) -> list[str]:
    """What follows `start` in the keys that begin with it."""
    answer = CLIENT.list_objects_v2(Bucket="bucket", Prefix=start)
    return [found["Key"].removeprefix(start) for found in answer.get("Contents", [])]


def _get(key: str) -> bytes:
    try:
        return bytes(CLIENT.get_object(Bucket="bucket", Key=key)["Body"].read())
    except CLIENT.exceptions.NoSuchKey:
        raise FileNotFoundError(key) from None


if __name__ == "__main__":
    script = pathlib.Path(__file__).parents[1] / "s3_server.py"
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        os.environ |= {"AWS_ENDPOINT_URL": server.stdout.readline().strip(), "AWS_DEFAULT_REGION": "us-east-1"}
        os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        CLIENT = _client()
        import s3fs  # noqa: F401  imported once for all forks

        status = main(S3Place)
        server.stdin.close()
    sys.exit(status)
