"""The diagnosis behind `unmask doctor`: what is here, whether the mathematics holds here, and whether a checkpoint is
well.

`packages` and `machine` tell what is installed and on what; `lawful` tries the laws on this machine. A checkpoint is
admitted as a `patient`, a text held open at a few positions, and examined by small checks (`network`, `likelihoods`,
`identity`) that each return a `Finding`; `examination` lists them. Nothing here prints.
"""

from __future__ import annotations
