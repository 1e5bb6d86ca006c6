"""Judging what models write: a causal language model as `judge`, `measures` of its tokens, `bootstrap`, `frontier`."""
