"""What is secret in an address, and how a login reaches a server."""

import base64

import pytest

from stages.foundations.errors import without_password
from stages.observe.tracking import with_login


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:S3CRET@host:5000/x", "http://me@host:5000/x"),
        ("postgresql+psycopg://me:S3/CR@ET@host/db", "postgresql+psycopg://me@host/db"),
        (
            "postgresql://host/db?user=me&password=S3CRET&sslmode=on",
            "postgresql://host/db?user=me&password=&sslmode=on",
        ),
        ("https://store/x?sv=1&sig=S3CRET", "https://store/x?sv=1&sig="),
        ("https://store/x?X-Amz-Signature=S3CRET#part", "https://store/x?X-Amz-Signature=#part"),
        (
            "call to 'https://me:S3CRET@host/api' failed: https://you:S3CRET@b",
            "call to 'https://me@host/api' failed: https://you@b",
        ),
        ("http://:S3CRET@host", "http://@host"),
        ("http://me@host:5000/x", "http://me@host:5000/x"),
        ("http://127.0.0.1:5000/#/experiments/1", "http://127.0.0.1:5000/#/experiments/1"),
        ("sqlite:////home/me/state/mlflow.db", "sqlite:////home/me/state/mlflow.db"),
        ("/some/folder@home:2", "/some/folder@home:2"),
        ("", ""),
    ],
)
def test_passwords_and_tokens_go_and_the_rest_stays(text, shown):
    assert without_password(text) == shown and without_password(shown) == shown


def basic(text):
    return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


def test_the_login_of_an_address_or_of_mlflows_variables_becomes_a_header(monkeypatch):
    for name in ("USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    assert with_login("http://h:5000/x") == ("http://h:5000/x", {})
    assert with_login("http://me:p%40ss@h:5000/x") == ("http://h:5000/x", basic("me:p@ss"))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "word")
    assert with_login("http://h") == ("http://h", {"Authorization": "Bearer word"})
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "team")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "other")
    assert with_login("http://h") == ("http://h", basic("team:other"))
    assert with_login("http://me:own@h") == ("http://h", basic("me:own"))
