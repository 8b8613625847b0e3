"""A server of object storage that speaks S3, as a process of its own, and one that fails on request before it."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import boto3
import pytest

from support.processes import own_mark

KEY, SECRET = "store-test-key", "store-test-secret"


@contextlib.contextmanager
def s3_server(host: str = "127.0.0.1") -> Iterator[str]:
    """Provide the URL of a running server. Its objects are in memory."""
    command = [sys.executable, "-m", "moto.server", "-H", host, "-p", "0"]
    env = os.environ | own_mark()
    server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env)
    assert server.stderr is not None
    try:
        url = next(found[0] for line in server.stderr if (found := re.search(rf"http://{re.escape(host)}:\d+", line)))
        drain = subprocess.Popen(["cat"], stdin=server.stderr, stdout=subprocess.DEVNULL, env=env)
        yield url
    finally:
        server.kill()
        server.wait()
    drain.wait()


@contextlib.contextmanager
def bucket(server: str, name: str) -> Iterator[str]:
    """Provide the URL of a new bucket. The environment names the server and the credentials meanwhile."""
    with credentials(server):
        boto3.client("s3").create_bucket(Bucket=name)
        yield f"s3://{name}/ingle"


@contextlib.contextmanager
def credentials(server: str) -> Iterator[None]:
    """Name a server and its credentials in the environment. A service takes the credentials out of it."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in environment(server).items():
            patch.setenv(variable, value)
        yield


def environment(server: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
