"""Figures of training runs and evaluations, and pictures, GIFs and HTML replays of how a text is unmasked."""
