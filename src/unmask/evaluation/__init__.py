"""Measuring models: held-out perplexity, n-gram baselines, the demonstration."""
