"""DSpark-style: the parallel block drafter with a Markov head; `train_confidence.py` adds the confidence head.

A quarter of the training sequences is kept from the drafter for that, so that its acceptance on them is that on unseen
text.

    python train_dspark.py --minutes 8
"""

from __future__ import annotations

from block import UNSEEN, train
from common import script_arguments

from avsim.capture.dense.drafters.dspark import DSpark

RANK = 192

if __name__ == "__main__":
    train(script_arguments("dspark", __doc__, minutes=8.0), DSpark, leave_out=UNSEEN, rank=RANK)
