"""The published gain of GLM-5.2 + DSpark split into fewer tokens and staying below the capture limit."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import norm

from avsim.costs import load
from avsim.experiments import Check, Experiment, Result, main, make_plot, save_plot
from avsim.planning.acceptance import Acceptance
from avsim.planning.infer import Fit, Priors
from avsim.planning.law import StepLaw
from avsim.planning.population import Latents, Population, Spread
from avsim.planning.throughput_table import Point

SEED = 0x0444
BLOCKS = (32, 32)  # steps and requests of a drawn population
SCALED = ("log_fixed_ms", "log_per_token_ms", "log_per_req_ms")  # the only priors with a unit of time


@dataclass(frozen=True)
class Verified:
    """Draft slots verified per request, one entry a drawn spread, with how well its curve meets the published one."""

    slots: np.ndarray
    weight: np.ndarray
    curves: np.ndarray


@dataclass(frozen=True)
class Steps:
    """Weighted draws of a step law that takes the published time with AV on: ms with AV off if there were no cliff."""

    no_cliff_ms: np.ndarray
    shallower_ms: dict[int, np.ndarray]
    """By fixed depth: of the deepest that stays captured under each limit."""
    fixed_ms: np.ndarray
    on_tokens: np.ndarray
    weight: np.ndarray


def verified_slots(off: np.ndarray, on: np.ndarray, priors: Priors, settings: dict[str, Any]) -> Verified:
    """Find how many slots the best-ranked ones must be to give the published acceptance length with AV on.

    Slots of all steps are ranked together by live survival, so the cut is one threshold; whatever cost or budget rule
    set it does not matter. Each drawn spread is weighted by the published rate of every position with AV on.
    """
    rng = np.random.default_rng([SEED, 1])
    latents = Latents.draw(len(off), *BLOCKS, SEED)
    conditional = Acceptance.from_marginal(off).conditional
    slots, misfit, curves = [], [], []
    for z in rng.standard_normal((settings["spreads"], 4)):
        sd, share, slope, offset = (
            mean + width * x
            for (mean, width), x in zip(
                (priors.confidence[name] for name in ("log_sd", "logit_request_share", "log_slope", "offset")),
                z, strict=True,
            )
        )  # fmt: skip
        spread = Spread(np.exp(sd), min(1 / (1 + np.exp(-share)), 0.97), slope=np.exp(slope), offset=offset)
        population = Population.make(conditional, spread, latents)
        ranked = np.argsort(-np.cumprod(population.live, axis=0), axis=None, kind="stable")
        gained = np.cumsum(population.survival.ravel()[ranked]) / np.prod(BLOCKS)
        cut = int(np.searchsorted(gained, on.sum())) + 1
        admitted = np.zeros(population.live.size, dtype=bool)
        admitted[ranked[:cut]] = True
        curve = np.where(admitted.reshape(population.live.shape), population.survival, 0).mean(axis=(1, 2))
        slots.append(cut / np.prod(BLOCKS))
        curves.append(curve)
        misfit.append(np.sum((np.log(np.maximum(curve, 1e-9) / on) / settings["curve_noise"]) ** 2))
    weight = np.exp(-0.5 * (np.array(misfit) - min(misfit)))
    return Verified(np.array(slots), weight / weight.sum(), np.array(curves))


def step_draws(verified: Verified, reqs: dict[str, float], lengths: dict[str, float], step_ms: dict[str, float],
               priors: Priors, settings: dict[str, Any]) -> Steps:  # fmt: skip
    """Draw step laws from the priors, each scaled to the published step time with AV on.

    Scaling moves the three quantities with a unit of time together; their weighted mean is independent of their ratios,
    so the prior of the scale is that mean's, and the weight its density.
    """
    count, depth = settings["laws"], settings["num_speculative_tokens"]
    rng = np.random.default_rng([SEED, 2])
    point = Point("", "fixed", depth, settings["concurrency"], reqs["off"], settings["throughput_tok_s"]["off"])
    fit = Fit([point], priors, depth, None)
    theta = fit.mean + fit.sd * rng.standard_normal((count, len(fit.mean)))
    law = fit.law(theta)

    def step(law: StepLaw, arm: str, tokens: float, drafted: int) -> np.ndarray:
        prompts = law.prompt_per_output * reqs[arm] * lengths[arm]
        return np.asarray(law.verify_ms(reqs[arm], tokens) + law.draft_ms(reqs[arm], drafted) + prompts)

    pick = rng.choice(len(verified.slots), count, p=verified.weight)
    on_tokens, on_step = reqs["on"] * (1 + verified.slots[pick]), np.empty(count)
    for i in np.unique(pick):
        on_step[pick == i] = step(fit.law(theta[pick == i]), "on", reqs["on"] * (1 + verified.slots[i]), depth)
    scale = step_ms["on"] / on_step
    means, sds = np.array([priors.cost[name] for name in SCALED]).T
    place = np.log([law.fixed, law.per_token, law.per_req]) + np.log(scale)
    precision = sds**-2
    middle = precision @ (place - means[:, None]) / precision.sum()
    weight = norm.pdf(middle, scale=precision.sum() ** -0.5)
    ms = {d: scale * step(law, "off", reqs["off"] * (d + 1), d) for d in {depth, *captured_depths(settings).values()}}
    return Steps(ms[depth], ms, scale * law.fixed, on_tokens, weight / weight.sum())


def captured_depths(settings: dict[str, Any]) -> dict[int, int]:
    """Return the deepest fixed depth whose step of all requests is captured, by limit."""
    depth, reqs = settings["num_speculative_tokens"], settings["concurrency"]
    return {limit: min(depth, limit // reqs - 1) for limit in settings["capture_limits"]}


def given_limit(steps: Steps, limit: int, off_tokens: float, off_ms: float, priors: Priors) -> np.ndarray:
    """Return the likelihood of the step time with AV off in every draw, where graphs are captured up to a limit.

    Beyond the limit the cliff is what the smooth law leaves, and counts by its prior; draws whose steps with AV on
    would lie beyond it as well are left out, since the published ones then hold no cliff to tell from. Below, the
    smooth law must give the time by itself.
    """
    if off_tokens <= limit:
        noise = priors.noise["throughput"]
        return norm.pdf(np.log(off_ms / steps.no_cliff_ms), scale=noise) / off_ms
    cliff = off_ms - steps.no_cliff_ms
    mean, sd = priors.cost["log_cliff_ratio"]
    ratio = np.log(np.maximum(cliff, 1e-9) / steps.fixed_ms)
    found = norm.pdf(ratio, mean, sd) / np.maximum(cliff, 1e-9)
    return np.where((cliff > 0) & (steps.on_tokens <= limit), found, 0.0)


def percentiles(values: np.ndarray, weight: np.ndarray, at: tuple[float, ...] = (50, 2.5, 97.5)) -> list[float]:
    """Return weighted percentiles."""
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return [float(values[order][min(np.searchsorted(total, p / 100 * total[-1]), len(values) - 1)]) for p in at]


def run(experiment: Experiment, out: Path) -> Result:
    settings = tomllib.loads((experiment.folder / "inputs.toml").read_text(encoding="utf-8"))
    rates = pl.read_csv(experiment.reference("pr52992_glm52_dspark16.csv"))
    off, on = (rates[name].to_numpy() / 100 for name in ("off_pct", "on_pct"))
    lengths = {"off": 1 + off.sum(), "on": 1 + on.sum()}
    step_ms = {arm: settings["tpot_ms"][arm] * lengths[arm] for arm in lengths}
    reqs = {arm: settings["throughput_tok_s"][arm] * settings["tpot_ms"][arm] * 1e-3 for arm in lengths}
    depth, asked, rate = settings["num_speculative_tokens"], settings["asked_step_ms"], settings["throughput_tok_s"]
    priors = Priors.load().with_auc(*settings["auc"])
    verified = verified_slots(off, on, priors, settings)
    steps = step_draws(verified, reqs, lengths, step_ms, priors, settings)
    off_tokens = reqs["off"] * (depth + 1)
    source, logs = experiment.source, np.log(step_ms["off"] / step_ms["on"])
    parts = step_ms["off"] / step_ms["on"] * lengths["on"] / lengths["off"] * reqs["on"] / reqs["off"]
    checks = [
        Check(name=f"step time with AV {arm}, TPOT × acceptance length", got=step_ms[arm], expected=asked[arm],
              tolerance=0.06, unit="ms", source=source)
        for arm in ("off", "on")
    ] + [
        Check(name="gain in throughput", got=100 * (rate["on"] / rate["off"] - 1), expected=183.8, tolerance=0.05,
              unit="%", source=source),
        Check(name="gain in throughput from step time, acceptance length and requests in flight",
              got=100 * (parts - 1), expected=100 * (rate["on"] / rate["off"] - 1), tolerance=0.01, unit="%",
              source="identity"),
    ] + [
        Check(name=f"requests in flight on average with AV {arm}, tok/s × TPOT", got=reqs[arm],
              expected=settings["concurrency"], rule="reported", source="as configured")
        for arm in ("off", "on")
    ]  # fmt: skip
    middle, low, high = percentiles(verified.slots, verified.weight)
    best = verified.curves[verified.weight.argmax()]
    tokens = reqs["on"] * (1 + middle)
    wait = settings["ttft_ms"]["off"] - settings["ttft_ms"]["on"]
    checks += [
        Check(name="draft slots verified per request with AV on, of 16, 95 % interval", got=middle, low=low, high=high,
              rule="reported"),
        Check(name="positions with AV on, rms misfit of the best spread",
              got=100 * np.sqrt(np.mean(np.log(best / on) ** 2)), rule="reported", unit="%"),
        Check(name="tokens of a step with AV on", got=tokens, low=reqs["on"] * (1 + low), high=reqs["on"] * (1 + high),
              rule="reported"),
        Check(name="tokens of a step with AV off, at the average load", got=off_tokens,
              expected=settings["concurrency"] * (depth + 1), rule="reported", source="all 64 requests"),
        Check(name="fall of TTFT in steps of the fall of step time", got=wait / (step_ms["off"] - step_ms["on"]),
              rule="reported"),
    ]  # fmt: skip
    weights, shares = {}, {}
    for limit in settings["capture_limits"]:
        weight = steps.weight * given_limit(steps, limit, off_tokens, step_ms["off"], priors)
        weights[limit] = weight
        cliff = np.log(step_ms["off"] / steps.no_cliff_ms) if off_tokens > limit else np.zeros(len(weight))
        share = shares[limit] = percentiles(100 * cliff / logs, weight)
        name = f"share of the fall of the step time (logarithm) that is cliff, limit {limit}, 95 % interval"
        checks.append(Check(name=name, got=share[0], low=share[1], high=share[2], unit="%", rule="reported"))
    checks += gain_checks(settings, steps, weights, off, step_ms, lengths, reqs)
    checks += prior_free_checks(settings, steps, tokens, off_tokens, step_ms, reqs)
    plot(out, off, on, best, steps, weights, settings, step_ms)
    main_limit = settings["main_limit"]
    share = shares[main_limit]
    return Result(
        tuple(checks),
        f"with a capture limit of {main_limit} (assumed), {share[0]:.0f} % ({share[1]:.0f} … {share[2]:.0f}) of the "
        f"fall of the step time is the cliff; {middle:.1f} of {depth} slots are verified",
    )


def gain_checks(
    settings: dict[str, Any],
    steps: Steps,
    weights: dict[int, np.ndarray],
    off: np.ndarray,
    step_ms: dict[str, float],
    lengths: dict[str, float],
    reqs: dict[str, float],
) -> list[Check]:
    """Return the step time without a cliff, and the gain over fixed depths that have none."""
    depth, main_limit = settings["num_speculative_tokens"], settings["main_limit"]
    on_rate = reqs["on"] * lengths["on"] / step_ms["on"]
    smooth = percentiles(steps.no_cliff_ms, weights[main_limit])
    name = f"step time with AV off if there were no cliff, limit {main_limit}, 95 % interval"
    found = [Check(name=name, got=smooth[0], low=smooth[1], high=smooth[2], unit="ms", rule="reported")]
    rivals = [(main_limit, depth, f"fixed:{depth} if there were no cliff, limit {main_limit}")]
    for limit, d in captured_depths(settings).items():
        if d < depth:
            rivals.append((limit, d, f"fixed:{d}, captured under a limit of {limit}: 64 × {d + 1} tokens"))
    for limit, d, name in rivals:
        rate = reqs["off"] * (1 + off[:d].sum()) / steps.shallower_ms[d]
        middle, low, high = percentiles(100 * (on_rate / rate - 1), weights[limit])
        found.append(Check(name=f"gain of AV over {name}, 95 % interval", got=middle, low=low, high=high, unit="%",
                           rule="reported"))  # fmt: skip
    return found


def prior_free_checks(settings: dict[str, Any], steps: Steps, tokens: float, off_tokens: float,
                      step_ms: dict[str, float], reqs: dict[str, float]) -> list[Check]:  # fmt: skip
    """Return the split under two other views of the curve, and how far tokens alone could reach."""
    logs, limit = np.log(step_ms["off"] / step_ms["on"]), settings["main_limit"]
    tables = load(settings["cost_preset"]).tables(settings["concurrency"], limit)
    off, on = (tables.verify[n] + tables.draft[round(reqs[arm])] for n, arm in ((limit, "off"), (round(tokens), "on")))
    return [
        Check(name="share that is cliff if a step costs nothing but its tokens (the least, without priors)",
              got=100 * (1 - np.log(off_tokens / tokens) / logs), unit="%", rule="reported"),
        Check(name=f"share that is cliff if the curve has the shape of {settings['cost_preset']}",
              got=100 * (1 - np.log(off / on) / logs), unit="%", rule="reported"),
        Check(name="chance under the priors that tokens alone make a step as long as published with AV off",
              got=100 * steps.weight[steps.no_cliff_ms >= step_ms["off"]].sum(), unit="%", rule="reported"),
    ]  # fmt: skip


def plot(out: Path, off: np.ndarray, on: np.ndarray, best: np.ndarray, steps: Steps,
         weights: dict[int, np.ndarray], settings: dict[str, Any], step_ms: dict[str, float]) -> None:  # fmt: skip
    figure, (left, right) = make_plot(2, width=9, height=3.8)
    slot = np.arange(len(off))
    left.plot(slot, off, "o-", ms=3, color="0.6", label="published, AV off")
    left.plot(slot, on, "D", ms=4, color="C1", label="published, AV on")
    left.plot(slot, best, "-", color="C0", label="best spread, cut at the same acceptance length")
    left.set(xlabel="slot", ylabel="emitted share of drafted slots", title="What was verified", yscale="log")
    ticks = [0.03, 0.05, 0.1, 0.2, 0.4, 0.7]
    left.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    left.minorticks_off()
    left.legend(fontsize=7)
    limit = settings["main_limit"]
    edges = np.linspace(step_ms["on"], 1.2 * step_ms["off"], 60)
    for weight, color, label in (
        (steps.weight, "0.6", "priors and the time with AV on"),
        (weights[limit] / weights[limit].sum(), "C0", f"and the time with AV off, cliff at {limit}"),
    ):
        values = np.minimum(steps.no_cliff_ms, edges[-1] - 1e-6)
        right.hist(values, edges, weights=weight, histtype="step", color=color, lw=1.5, label=label)
    for arm in ("on", "off"):
        right.axvline(step_ms[arm], color="C1", lw=1.2, ls=":")
        place = {"xytext": (3, 3), "textcoords": "offset points"}
        right.annotate(f"AV {arm}", (step_ms[arm], 0), color="C1", fontsize=8, **place)
    right.set(xlabel="ms of a step with AV off, had it no cliff", ylabel="share of draws",
              title="What is missing up to the right line is cliff")  # fmt: skip
    right.legend(fontsize=7, loc="upper right")
    save_plot(figure, out)


if __name__ == "__main__":
    main(run)
