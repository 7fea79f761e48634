"""The papers' formulas as pure functions on tensors and text: no files, no clock, no processes."""
