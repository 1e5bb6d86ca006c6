"""Objectives: what a denoiser is trained on and judged by. One file a member; `base` holds what they share."""
