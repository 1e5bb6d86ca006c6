"""Optimizers: AdamW and Muon, with their learning-rate schedule."""
