"""Relays with a fault. They have a separate file, because each relay process imports it and needs no torch."""

from __future__ import annotations

from stages.engines.relays import published_weights
from stages.engines.relays.relay import Relay


class Damaging(Relay):
    """A relay whose first `left` answers have a wrong bit."""

    left = 2

    def chunk(self, version, digest, place):
        content = super().chunk(version, digest, place)
        if self.left:
            self.left -= 1
            return content[:-1] + bytes([content[-1] ^ 1])
        return content


class AlwaysDamaging(Damaging):
    left = 10**9


class Slow(Relay):
    """A relay that has only its first chunk until it is released."""

    is_released = False

    def release(self):
        self.is_released = True

    def chunk(self, version, digest, place):
        is_here = self.is_released or tuple(place) == (0, 0)
        return super().chunk(version, digest, place) if is_here else None


class NoRoom(Relay):
    def fetch(self, version, chain):
        published_weights.SPARE_BYTES = 1 << 60
        return super().fetch(version, chain)
