"""Taking an estimator from a replayed trace into a serving vLLM engine.

    bundle.py        one file: the estimator, what it has learned, and what it was learned on
    make.py          a bundle from traces
    config.py        what the engine's environment asks for
    fit.py           why an engine cannot take a bundle
    agree.py         all tensor-parallel ranks take it, or none does
    trial.py         the kernels against NumPy, on the device that will serve
    estimator.py     what stands in the place of vLLM's estimator
    ledger.py        counts on the device, copied to the host now and then
    report.py        those counts as a JSON file
    prometheus.py    … and as metrics
    vllm_hooks.py    hooks on vLLM's model runner
    control.py       what can be asked of a running engine

Importing any of these imports neither torch, Triton nor vLLM.
"""
