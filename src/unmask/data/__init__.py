"""From text to rows of token ids: sources, tokenizers, token cache, training and validation split, length policies.

The package imports neither torch nor the mathematics; arrays are numpy's, and large ones are memory-mapped.
"""
