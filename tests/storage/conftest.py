"""The stores that everything in `marin.storage` is tested on: local, memory:// and a real S3 server on loopback."""

import pathlib

import pytest


@pytest.fixture(params=["local", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    """An empty directory on each kind of store."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3_prefix"))
    return str(tmp_path / "d") if request.param == "local" else f"memory://{tmp_path}/d"
