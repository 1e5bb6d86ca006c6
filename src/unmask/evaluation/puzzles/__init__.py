"""How well a model solves items with one right answer: which are asked, in which ways, and what came of it."""
