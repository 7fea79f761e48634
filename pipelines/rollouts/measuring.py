"""A policy's log-probabilities and entropies of the tokens that a round has sampled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from stages.engines.policies.packing import TokenSequence, pack, split_by_tokens
from stages.engines.policies.policy_folders import load_policy
from stages.engines.policies.statistics import policy_statistics
from stages.engines.policies.tokenizers import encode_prompt
from stages.engines.turns import problem_texts
from stages.foundations.errors import UserError
from stages.foundations.params import PromptParams, load_section
from stages.foundations.tables import ROLLOUT, read_table
from stages.observe.progress import progress
from stages.rl_round.params import RlParams

TOKENS_AT_ONCE = 8192


def measure(
    colour: str, table: Path, problems: Mapping[str, tuple[str, str]], policy: Path, params: Path, most: int
) -> dict[int, list[float]]:
    """Returns a value in nats for each token of about `most` responses, by their row in the rollouts table.

    `gap`: the log-probability under the policy minus the sampler's. `entropy`: that of the policy before the token.
    Measures whole groups, evenly spaced, at the temperature and over the vocabulary of `params`. UserError when the
    policy does not know a token.
    """
    prompt, rl = load_section(params, "prompt", PromptParams), load_section(params, "rl", RlParams)
    rows = read_table(table, ROLLOUT)
    places = rows[["step", "problem_id"]]
    groups = ((places != places.shift()).any(axis=1) | (rows["sample_index"] == 0)).cumsum() - 1
    rows = rows[(groups % max(1, -(-len(rows) // most)) == 0) & rows["problem_id"].isin(list(problems))]
    model, tokenizer = load_policy(policy, torch.float32)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    names = list(dict.fromkeys(rows["problem_id"]))
    columns = [{"problem_id": name, "problem": problems[name][0], "answer": problems[name][1]} for name in names]
    texts = dict(zip(names, problem_texts(prompt, columns), strict=True))
    sequences = [
        TokenSequence(encode_prompt(tokenizer, prompt, texts[name]), tokens.tolist())
        for name, tokens in zip(rows["problem_id"], rows["token_ids"], strict=True)
    ]
    largest = max((token for one in sequences for token in one.response), default=0)
    if largest >= (known := len(model.get_input_embeddings().weight)):
        raise UserError(f"{policy} knows {known} tokens, and the rollouts have token {largest}: name another --policy")
    values: dict[int, list[float]] = {}
    parts = split_by_tokens([one.tokens for one in sequences], TOKENS_AT_ONCE)
    for part in progress(parts, label=colour, unit="batches"):
        batch = pack([sequences[place] for place in part], rl.temperature, log_threshold=rl.log_threshold)
        with torch.no_grad():
            statistics = policy_statistics(model, batch.to(model.device))
        found = statistics.entropy if colour == "entropy" else statistics.logprobs
        for place, of_row in zip(part, found.cpu().numpy(), strict=True):
            drawn = rows["rollout_logprobs"].iloc[place]
            less = drawn if colour == "gap" else 0.0
            values[int(rows.index[place])] = (of_row[: len(drawn)] - less).tolist()
    return values
