"""Text in, rows of token ids out: sources, tokenizers, a cache of tokens, train/validation splits and length policies.

Nothing here knows of models or of torch; arrays are numpy's, and big ones are read from memory maps.
"""
