"""Samplers: how a canvas is unmasked. One file a member; `base` is the protocol, `draws` the choice of a token."""
