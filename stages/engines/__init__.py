"""The samplers, trainers and verifier processes: the only package that imports transformers, vllm, deepspeed or ray."""
