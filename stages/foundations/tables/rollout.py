"""A response that a round of reinforcement learning has sampled."""

from __future__ import annotations

import pyarrow

from stages.foundations.tables.table import TEXT, TableSchema

ROLLOUT = TableSchema(
    "rollout",
    {
        "problem_id": TEXT,
        "step": pyarrow.int32(),
        "policy_version": pyarrow.int32(),
        "sample_index": pyarrow.int32(),
        "response": TEXT,
        "response_tokens": pyarrow.int32(),
        "token_ids": pyarrow.list_(pyarrow.int32()),
        "rollout_logprobs": pyarrow.list_(pyarrow.float32()),
        "reward": pyarrow.float32(),
        "verdict": TEXT,
        "is_truncated": pyarrow.bool_(),
        "is_trained": pyarrow.bool_(),
    },
)
