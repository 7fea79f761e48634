"""Seeds and orders: independent streams that can be picked up anywhere."""

from collections import Counter

from stages.foundations.seeds import derive_seed, endless_order, permutation


def test_streams_differ_and_repeat():
    seeds = [derive_seed(seed, name, step) for seed in range(3) for name in ("a", "b") for step in range(3)]
    assert len(set(seeds)) == len(seeds)
    assert derive_seed(1, "a", 2) == derive_seed(1, "a", 2) < 2**63
    assert derive_seed("1", "23") != derive_seed("12", "3")


def test_every_epoch_is_another_permutation():
    order = endless_order(0, 30, 10, 0, "sft")
    assert Counter(order) == Counter(list(range(10)) * 3)
    assert order[:10] != order[10:20] != list(range(10))
    assert sorted(permutation(7, "x")) == list(range(7))


def test_going_on_sees_what_a_straight_run_sees():
    assert endless_order(0, 8, 5, 1) + endless_order(8, 23, 5, 1) == endless_order(0, 23, 5, 1)
