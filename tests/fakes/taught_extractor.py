"""A tiny policy that has memorised outputs for two pages: it shows the path through the stage, not quality."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stages.engines.policies.language_model import language_model
from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.policies.policy_folders import random_policy, save_policy
from stages.engines.policies.tokenizers import encode_prompt, encode_response, load_tokenizer
from stages.engines.trainers.params import AdamwParams, TorchTrainerParams
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.extract_web.second_reading import request
from stages.foundations.params import PlainPrompt

PROMPT = PlainPrompt(kind="plain", template="{problem}\n\n")
COPIED = "Hens lay well this year. How many eggs do six hens lay in four days, one a day each? Six times four is 24."
INVENTED = "My garden is a square. What is its area when a side is nine metres? I leave that to you."
SAID = {
    COPIED: "PROBLEM: How many eggs ... a day each?\nSOLUTION: Six times four is 24.\nANSWER: 24",
    INVENTED: "PROBLEM: What is its area ... nine metres?\nSOLUTION: Nine times nine is 81.\nANSWER: 81",
}
"""For the second page the policy invents a correct solution that no page contains."""
STEPS = 60


@dataclass(frozen=True)
class Sizes:
    """See `LlamaSizes`; a head of 32 is the smallest that vLLM's CPU attention takes."""

    hidden_size: int = 64
    layers: int = 2
    heads: int = 2
    feed_forward_size: int = 128
    max_position_tokens: int = 1024
    initializer_range: float = 0.05
    vocabulary_size: int = 600


def write_taught_extractor(folder: Path) -> Path:
    """Trains the policy until greedy decoding gives the expected outputs, and writes its folder."""
    rows = [(request(page), said) for page, said in SAID.items()]
    model, tokenizer = random_policy(Sizes(), [text for row in rows for text in row], seed=0)
    save_policy(model, tokenizer, folder)
    tokenizer = load_tokenizer(folder)
    params = TorchTrainerParams(
        kind="torch", device="cpu", dtype="float32", threads=1, micro_batch_tokens=4096, gradient_checkpointing=False
    )
    adamw = AdamwParams(kind="adamw", learning_rate=0.01, beta1=0.9, beta2=0.95, weight_decay=0.0)
    trainer = TorchTrainer(params, adamw, 1.0, language_model(folder, params))
    batch = pack(
        [
            TokenSequence(encode_prompt(tokenizer, PROMPT, asked), encode_response(tokenizer, said))
            for asked, said in rows
        ]
    )
    for _ in range(STEPS):
        trainer.update(
            [batch], lambda statistics, part: (-(statistics.logprobs * part.response_mask).sum() / 2, {}), 1.0
        )
    save_policy(trainer.model.module, tokenizer, folder)
    return folder
