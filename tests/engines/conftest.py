"""Tiny policies in folders, which tests of all engines read and none changes."""

import pytest

from tests.fakes.tiny_policy import write_tiny_policy


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    return write_tiny_policy(tmp_path_factory.mktemp("tied") / "policy")


@pytest.fixture(scope="session")
def untied(tmp_path_factory):
    """The head is no copy of the embeddings, as in most large policies."""
    return write_tiny_policy(tmp_path_factory.mktemp("untied") / "policy", tie=False)
