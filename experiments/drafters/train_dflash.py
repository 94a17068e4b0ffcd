"""DFlash-style: a parallel block drafter over the target's hidden states, non-causal inside the block.

python train_dflash.py --minutes 5
"""

from __future__ import annotations

from block import train
from common import script_arguments

from avsim.capture.dense.drafters.dflash import DFlash

if __name__ == "__main__":
    train(script_arguments("dflash", __doc__, minutes=5.0), DFlash)
