"""Perplexity of held-out text, generative perplexity under another model, and accuracy on puzzles and code."""
