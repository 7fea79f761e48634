"""What runs in a replica's process: a `Replica` that is built once, then called again and again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from stages.engines.replicas.messages import Orders, Report
from stages.engines.samplers.protocol import Sampler


class ReplicaActor:
    """Becomes a Ray actor in `fleet.py`. The constructor only keeps its arguments: what fails in one has no class."""

    def __init__(self, build: Callable[[], Sampler], run: str | None, version: int | None) -> None:
        self._build, self._run, self._version = build, run, version

    def start(self) -> tuple[str, int]:
        """Builds the replica; the node's id and the process's."""
        import ray

        from stages.engines.relays.published_weights import weights_folder
        from stages.engines.replicas.replica import Replica
        from stages.observe.quick_imports import quick_imports

        node = ray.get_runtime_context().get_node_id()
        folder = None if self._run is None else weights_folder(self._run, node)
        with quick_imports():  # torch and transformers, which every sampler loads
            import stages.engines.policies.policy_folders  # noqa: F401

        self._replica = Replica(self._build, folder, self._version)
        return node, os.getpid()

    def advance(self, orders: Orders) -> Report:
        """See `Replica`."""
        return self._replica.advance(orders)

    def logprobs(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """See `Replica`."""
        return self._replica.logprobs(prompts, responses)
