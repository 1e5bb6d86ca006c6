"""Measuring models: held-out perplexity, judged samples, the demonstration."""
