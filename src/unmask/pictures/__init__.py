"""A canvas being unmasked, for the eye: a page to step through, an animation, a still. All are made of `Frame`s."""
