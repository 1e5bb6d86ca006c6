"""Samplers: how a canvas is unmasked. One file a member; `base` holds the protocol and `draws` the choice of a token."""
