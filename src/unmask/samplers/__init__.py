"""Samplers: one file per family; `base` has the protocol, `options` the choice of a sampler."""
