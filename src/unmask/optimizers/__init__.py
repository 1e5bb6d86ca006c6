"""Optimisers: one file a member, what they share in `base`, and several of torch's under one face in `chained`."""
