"""Step costs measured on this machine: `avsim cost profile`.

`run_profile` takes anything with the interface of `Runner`; two runners are here, a Transformers model and a decoder
with random weights. Only the modules of those two need torch.
"""

from avsim.costs.profile.plan import ProfilePlan
from avsim.costs.profile.run import ProfileCard, ProfileRun, run_profile, write_profile
from avsim.costs.profile.runner import Runner, Step
from avsim.costs.profile.timers import CpuTimer, CudaTimer, Timer, timer_for

__all__ = [
    "CpuTimer",
    "CudaTimer",
    "ProfileCard",
    "ProfilePlan",
    "ProfileRun",
    "Runner",
    "Step",
    "Timer",
    "run_profile",
    "timer_for",
    "write_profile",
]
