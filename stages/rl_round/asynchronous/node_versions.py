"""Which versions of the weights replicas can load, by node."""

from __future__ import annotations

from collections.abc import Iterable

from stages.engines.relays.chain import Arrived, RelayChain
from stages.engines.relays.published_weights import PublishedWeights, weights_folder


class NodeVersions:
    """On the trainer's node, which is the hub's, a version is there once published; elsewhere a relay brings it."""

    def __init__(self, run: str, node: str, chain: RelayChain) -> None:
        self.folder = weights_folder(run, node)
        self._published = PublishedWeights(self.folder)
        self._node, self._chain = node, chain
        self._here: list[int] = []

    def of(self, node: str) -> list[int]:
        """Those that a replica on this node can load, oldest first."""
        return self._here if node == self._node else self._chain.have.get(node, [])

    def look(self, nodes: Iterable[str]) -> list[Arrived]:
        """Looks again, and lets relays fetch what is new for `nodes`; what has arrived since. Waits for nobody."""
        here = self._published.versions()
        self._chain.ensure([self._node, *nodes])
        if here != self._here:
            self._here = here
            self._chain.announce(here[-1])
        return self._chain.poll()
