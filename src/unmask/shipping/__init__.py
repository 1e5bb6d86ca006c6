"""A run made ready to be handed on: a small checkpoint in bf16 shards with its recipe and a model card.

>>> from unmask.shipping import ship
>>> ship("runs/mine", "models/mine", bounds=["eval.json"], judged="judged.json")
"""

from __future__ import annotations

from unmask.shipping.packing import Parcel, ship

__all__ = ["Parcel", "ship"]
