"""Objectives: the bounds and losses a denoiser is trained on and evaluated by."""
