"""How well a model fills blanks in functions it has not seen: which blanks, in which ways, what came of it."""
