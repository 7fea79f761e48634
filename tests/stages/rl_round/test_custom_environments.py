"""A round whose responses a user's environment answers and rewards."""

from stages.__main__ import main
from stages.foundations.tables import ROLLOUT, read_table
from tests.fakes.taught_policy import rl_flags, write_params

SECTION = {
    "kind": "custom",
    "file": "custom/guess_number.py",
    "name": "GuessNumber",
    "arguments": {"highest": 9, "most": 2},
    "frame": {"kind": "text", "before": " ", "after": " "},
    "max_turns": 2,
    "max_observation_tokens": 30,
    "workers": {"processes": 2, "memory_mib": 512, "timeout_seconds": 2.0},
}
CHANGES = {
    "prompt.environment": SECTION,
    "rl.reward": {"kind": "environment"},
    "rl.max_response_tokens": 120,
    "rl.overlong": {"kind": "none"},
    "rl.dynamic_sampling": {"kind": "none"},
    "rl.advantage": {"kind": "reward"},
    "rl.weight_sync_check.max_logprob_gap": None,
    "rl_rounds.rl_1.steps": 1,
}


def test_a_round_with_a_users_environment(taught, tmp_path):
    main(rl_flags(taught, write_params(tmp_path / "params.yaml", CHANGES), tmp_path / "round"))
    rows = read_table(tmp_path / "round" / "rl_1.parquet", ROLLOUT)
    assert (rows["environment_fault"] == "").all()
    ended = rows[rows["environment_reward"].notna()]
    assert len(ended) > 0 and (ended["reward"] == ended["environment_reward"]).all()
    # The environment decides what is correct, whatever the gold answer is.
    assert (ended["verdict"] == ended["reward"].map({1.0: "correct", 0.0: "wrong"})).all()
    assert set(ended["turns"]) <= {1, 2} and 2 in set(ended["turns"])
