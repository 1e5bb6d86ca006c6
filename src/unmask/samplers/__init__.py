"""Samplers: one file per family; `base` has the protocol, `options` what a user may ask for."""
