"""Tokenizers of policy folders: prompts to token ids, responses to token ids and back. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

from stages.foundations.errors import UserError
from stages.foundations.params import ChatPrompt, PlainPrompt, format_problem

KNOWN_CLASSES: dict[tuple[str, str], type[PreTrainedTokenizerBase]] = {
    ("llama", "TokenizersBackend"): PreTrainedTokenizerFast,
    ("llama", "PreTrainedTokenizerFast"): PreTrainedTokenizerFast,
    ("qwen2", "Qwen2Tokenizer"): Qwen2Tokenizer,
    ("qwen2", "Qwen2TokenizerFast"): Qwen2Tokenizer,
    ("qwen3", "TokenizersBackend"): PreTrainedTokenizerFast,
    ("qwen3", "Qwen2Tokenizer"): Qwen2Tokenizer,
    ("qwen3", "Qwen2TokenizerFast"): Qwen2Tokenizer,
}
"""What `AutoTokenizer` takes for the model type of a folder's config and the class that its tokenizer's config names.

Nothing but the short cut around `AutoTokenizer`, which imports torch (2 s, 300 MB) to read a few names.
"""


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a policy folder; UserError when it has none or no end-of-sequence token.

    Imports torch only for tokenizers that are not among `KNOWN_CLASSES`.
    """
    try:
        known = KNOWN_CLASSES.get(_named_classes(folder))
        if known is None:
            # Here, because this import loads torch.
            from transformers import AutoTokenizer as known
        tokenizer = known.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    # Any kind: the file is somebody else's, and the library in Rust raises bare exceptions.
    except Exception as error:
        raise UserError(
            f"{folder} holds no usable tokenizer ({error}): make the policy again with its tokenizer"
        ) from error
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer of {folder} has no end-of-sequence token: set eos_token in its config")
    return tokenizer


def _named_classes(folder: Path) -> tuple[str, str] | None:
    """Model type and tokenizer class; None where a file is missing or names code of its own."""
    paths = [folder / name for name in ("config.json", "tokenizer_config.json")]
    if not all(path.is_file() for path in (*paths, folder / "tokenizer.json")):
        return None
    model, tokenizer = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    # `auto_map` names Python files of the folder: left to AutoTokenizer, which refuses to run them.
    if "auto_map" in tokenizer:
        return None
    return model.get("model_type", ""), tokenizer.get("tokenizer_class", "")


def encode_prompt(tokenizer: PreTrainedTokenizerBase, params: PlainPrompt | ChatPrompt, problem: str) -> list[int]:
    """Token ids of the prompt for `problem`, ready for the response's first token.

    UserError when a chat prompt is asked of a tokenizer without a chat template.
    """
    match params:
        case PlainPrompt():
            return list(tokenizer.encode(format_problem(params, problem), add_special_tokens=True))
        case ChatPrompt():
            # transformers would raise too, without the setting that helps.
            if not tokenizer.chat_template:
                raise UserError("the policy's tokenizer has no chat template: set `prompt.kind: plain`")
            messages = [{"role": "system", "content": params.system}] if params.system else []
            messages.append({"role": "user", "content": problem + params.suffix})
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            # The template has written its special tokens: a second beginning would change the prompt.
            return list(tokenizer.encode(text, add_special_tokens=False))


def encode_response(tokenizer: PreTrainedTokenizerBase, response: str) -> list[int]:
    """Token ids of a whole response, the end-of-sequence token included."""
    # Without special tokens: a response follows a prompt, which has the one of the beginning.
    return [*tokenizer.encode(response, add_special_tokens=False), tokenizer.eos_token_id]


def decode_response(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> str:
    """The response's text without special tokens."""
    return tokenizer.decode(token_ids, skip_special_tokens=True)
