"""Stage `sft`: supervised fine-tuning of the base policy on demonstrations."""
