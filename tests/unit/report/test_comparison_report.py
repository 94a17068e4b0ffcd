"""The report of a comparison: complete, honest, self-contained, safe and reproducible; and seen in a browser."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from html import unescape
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pages import Balance, text_of

from avsim.comparison import CompareConfig, compare
from avsim.comparison import run as running
from avsim.manifest import make_manifest
from avsim.report import comparison_wording as wording
from avsim.report.comparison_console import print_comparison
from avsim.report.comparison_html import comparison_csv, comparison_html
from avsim.report.comparison_plots import comparison_figures
from avsim.sources import write_trace
from avsim.sources.synthetic import SyntheticLaw, write_synthetic

HOSTILE = '<script>alert("x")</script>$a^{'
CONFIG = CompareConfig(
    estimators=("online-logistic", "position-rate", "slot-logit", "oracle-label", "temperature-offline"),
    offsets=1, num_slots=2, bootstrap=100, cost="deepseek-v4-flash-tp4-b300", what_if=True, loads=(8, 16), replicates=2,
    warm_steps=0, explain=True, then=("category=code",), drift_steps=100, influence=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """A trace of sampled drafts with everything that can be asked for, and a synthetic on-policy one."""
    folder = tmp_path_factory.mktemp("traces")
    law = SyntheticLaw(num_requests=24, output_len=16, num_speculative_tokens=2)
    drawn = write_synthetic(folder / "drawn", law)
    card = replace(drawn.card, name="sampled", synthetic=False, draft_sampling="probabilistic", temperature=1.0)
    blocks = pl.read_parquet(drawn.path / "blocks-00000.parquet")
    odds = {f"draft_logprob_{slot}": -(1 + (-pl.col(f"log_odds_{slot}")).exp()).log() for slot in range(2)}
    kinds = drawn.requests.with_columns(
        temperature=pl.lit(1.0),
        category=pl.when(pl.col("request") % 3 == 0).then(pl.lit("code")).otherwise(pl.lit("chat")),
    )
    sampled = write_trace(folder / "sampled", card, kinds, [blocks.with_columns(**odds)])
    live = write_synthetic(folder / "live", replace(law, kind="on-policy", num_reqs=4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "_CEILINGS", ("temperature-offline",))  # boosting takes seconds, and changes no page
        found = compare([sampled.path], CONFIG, workers=1)
    plain = replace(CONFIG, explain=False, estimators=("online-logistic", "position-rate"))
    return found + compare([live.path], plain, workers=1)


@pytest.fixture(scope="module")
def manifest(results: list[dict[str, Any]]) -> dict[str, Any]:
    return make_manifest("compare", asdict(CONFIG), {result["trace"]: result["content_hash"] for result in results})


@pytest.fixture(scope="module")
def report(results: list[dict[str, Any]], manifest: dict[str, Any]) -> str:
    pytest.importorskip("matplotlib")
    return comparison_html(results, manifest)


def test_is_well_formed(report: str) -> None:
    parser = Balance()
    parser.feed(report)
    assert parser.wrong == []
    assert parser.stack == []


def test_loads_nothing_and_runs_nothing(report: str) -> None:
    for word in ("<script", "<link", "<img", "<iframe", "@import", "://"):
        assert word not in report, word
    assert set(re.findall(r'(?:src|href)="([^"#])', report)) == set()
    assert not re.search(r"url\((?!#)", report)
    assert "default-src 'none'; style-src 'unsafe-inline'" in report


def test_ids_are_unique_and_references_resolve(report: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', report)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'href="#([^"]+)"', report)) | set(re.findall(r"url\(#([^)]+)\)", report))
    assert used <= set(ids)


def test_is_the_same_each_time_and_leaves_results_alone(
    report: str, results: list[dict[str, Any]], manifest: dict[str, Any]
) -> None:
    before = copy.deepcopy(results)
    assert comparison_html(results, manifest) == report
    assert results == before


def test_figures_follow_the_page_colours(report: str) -> None:
    figures = "".join(re.findall(r"<svg.*?</svg>", report, flags=re.DOTALL))
    # Reliability, slots and time of both traces; throughput, the rungs and drift of the dense one.
    assert report.count("<svg") == 9
    assert "var(--ink)" in figures
    assert re.findall(r"#[0-9a-f]{6}\b", figures) == []


def test_says_every_score_change_and_note(report: str, results: list[dict[str, Any]]) -> None:
    text = text_of(report)
    for result in results:
        assert wording.headline(result) in text
        for note in wording.notes(result):
            assert " ".join(note.split()) in text, note
        for row in result["rows"]:
            assert f"{row['conditional']['log_loss']:.4f}" in text
            for name in ("log_loss_change", "cumulative_log_loss_change"):
                assert wording.change_text(row, name) in text
        for kind, name in (
            ("throughput", "change"),
            ("explain", "change"),
            ("drift", "excess"),
            ("influence", "change"),
        ):
            for row in result[kind]:
                assert wording.change_text(row, name) in text, (kind, row)
        assert result["content_hash"] in text
    assert "throughput and drift are left out: only a dense trace" in text
    assert "lossy with sampled drafts, so staleness comes out too large" in text


def test_bounds_and_lossy_scores_are_marked_wherever_they_are_named(report: str, results: list[dict[str, Any]]) -> None:
    cells = [unescape(cell) for cell in re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", report)]
    scores = report.partition('id="provenance"')[0].partition('id="trace0"')[2]
    named = [unescape(cell) for cell in re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", scores)]
    for name, mark in (("slot-logit", "†"), ("oracle-label", "*†"), ("online-logistic", ""), ("position-rate", "")):
        assert f"{name}{mark}" in named
        assert f"adaptive + {name}{mark}" in named
        if mark:
            assert name not in named
            assert f"adaptive + {name}" not in named
    assert "oracle*" in cells
    text = text_of(report)
    assert "† LOSSY with this trace's sampled drafts: estimator slot-logit reads the drawn token" in text
    assert "* reads the verdict or what only the target knows, so no engine can run it: a bound" in text
    # In the summary the marks stand behind the change.
    summary = report.partition('id="trace0"')[0]
    slot_logit = next(row for row in results[0]["rows"] if row["estimator"] == "slot-logit")
    assert f"{wording.change_text(slot_logit, 'log_loss_change')}†" in text_of(summary)


@pytest.mark.parametrize("words", ["OFFLINE COMPARISON", "SIMULATED THROUGHPUT", "WHAT IF", "SYNTHETIC"])
def test_restrictions_head_the_report(words: str, report: str) -> None:
    head = report.partition('id="summary"')[0]
    assert re.search(rf'<span class="badge[^"]*">{words}</span>', head)


def test_what_is_simulated_on_foreign_costs_says_so_by_itself(report: str, results: list[dict[str, Any]]) -> None:
    captions = [text_of(part) for part in re.findall(r"<figcaption>.*?</figcaption>", report, flags=re.DOTALL)]
    assert [caption for caption in captions if "SIMULATED" in caption] == [
        caption for caption in captions if "SIMULATED, WHAT IF: trace" in caption
    ]
    assert len([caption for caption in captions if "SIMULATED" in caption]) == 2
    # The last three figures are of the synthetic trace.
    assert ["(SYNTHETIC)" in caption for caption in captions] == [False] * 6 + [True] * 3
    synthetic = copy.deepcopy(results[0]) | {"synthetic": True}
    figures = comparison_figures(synthetic, "x")
    assert figures is not None
    found = re.findall(r"<figcaption>.*?</figcaption>", figures, flags=re.DOTALL)
    assert len(found) == 6
    assert all("(SYNTHETIC)" in caption for caption in found)


def test_a_plain_comparison_claims_neither(results: list[dict[str, Any]], manifest: dict[str, Any]) -> None:
    plain = results[0] | {"throughput": [], "explain": [], "drift": [], "influence": [], "what_if_costs": False}
    html = comparison_html([plain], manifest)
    assert '<span class="badge warn">' not in html
    assert "SIMULATED" not in html
    assert html.count("<svg") == 3


def test_only_the_best_are_shaded(report: str, results: list[dict[str, Any]]) -> None:
    summary = report.partition('id="trace0"')[0]
    shaded = [unescape(cell) for cell in re.findall(r'<td class="best">([^<]*)</td>', summary)]
    expected = []
    for number in range(5):
        for result in results:
            if number < len(result["rows"]):
                row = result["rows"][number]
                value = wording.change_text(row, "log_loss_change") or f"{row['conditional']['log_loss']:.4f} nats"
                if row["group"] in ("best", "not distinguishable from the best"):
                    expected.append(value + wording.marked(row)[len(row["estimator"]) :])
    assert sorted(shaded) == sorted(expected)
    assert len(shaded) >= 2
    assert any(cell.endswith("nats") for cell in shaded)


def test_the_reference_is_drawn_even_where_no_engine_can_run_it(results: list[dict[str, Any]]) -> None:
    """Differences in the figures are to the first estimator, whatever it is."""
    pytest.importorskip("matplotlib")
    turned = copy.deepcopy(results[0])
    turned["rows"] = [turned["rows"][3], *turned["rows"][:3], *turned["rows"][4:]]
    turned |= {"reference": "oracle-label", "throughput": [], "explain": [], "drift": []}
    figures = comparison_figures(turned, "x")
    assert figures is not None
    assert "oracle-label*†" in unescape(figures)


def test_without_matplotlib(
    results: list[dict[str, Any]], manifest: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    html = comparison_html(results, manifest)
    assert "pip install &#x27;avsim[plot]&#x27;" in html
    assert "<svg" not in html
    assert "≈ best" in html


def hostile(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {names.get(key, key): hostile(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [hostile(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def test_every_name_is_escaped(results: list[dict[str, Any]], manifest: dict[str, Any]) -> None:
    """Names of traces, categories and estimators come from files and packages; $ is not mathematics."""
    texts = {row["estimator"] for result in results for row in result["rows"]}
    texts |= {name for result in results for row in result["rows"] for name in row["categories"]}
    texts |= {result["trace"] for result in results} | {results[0]["step_costs"]}
    names = {text: text + HOSTILE for text in texts}
    html = comparison_html(hostile(results[:1], names), hostile(manifest, names))
    assert "<script" not in html
    assert html.count("&lt;script&gt;") > 50
    assert "alert(" in comparison_csv(hostile(results, names))


def test_the_console_says_the_same(results: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "220")
        for result in results:
            print_comparison(result)
    out = capsys.readouterr().out
    flat = " ".join(re.sub(r"[│┃]", " ", out).split())
    for result in results:
        assert wording.headline(result) in flat
        for row in result["rows"]:
            assert wording.change_text(row, "log_loss_change") in out
        for note in wording.notes(result):
            assert " ".join(note.split()[:5]) in flat
    for part in (
        "SIMULATED, WHAT IF, at 8",
        "SIMULATED, WHAT IF: online-logistic at 16",
        "adaptive + slot-logit†",
        "oracle*",
    ):
        assert part in out, part
    assert re.search(r"│ slot-logit†\s+│ [^│]*→ code\s+│ switch", out)
    assert "labels under this admission" in out  # of the on-policy trace


def test_changes_are_written_with_a_minus_and_without_a_negative_zero() -> None:
    row = {"change_pct": -0.04, "change_low_pct": -1.26, "change_high_pct": 0.04}
    assert wording.change_text(row, "change") == "+0.0 % (−1.3 … +0.0)"
    assert wording.change_text(dict.fromkeys(row), "change") == ""


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LOOK = """<script>
const seen = {errors: []};
addEventListener("error", event => seen.errors.push(event.message));
addEventListener("load", () => {
  seen.dark = matchMedia("(prefers-color-scheme: dark)").matches;
  seen.back = getComputedStyle(document.body).backgroundColor;
  seen.ink = getComputedStyle(document.body).color;
  seen.label = getComputedStyle(document.querySelector("svg text")).fill;
  seen.needed = document.documentElement.scrollWidth;
  seen.width = innerWidth;
  seen.figures = [...document.querySelectorAll("svg")].map(svg => svg.getBoundingClientRect().height);
  seen.wide = [...document.querySelectorAll("main *")].filter(
    item => !item.closest(".scroll") && item.getBoundingClientRect().right > innerWidth + 1).map(item => item.tagName);
  parent.postMessage(JSON.stringify(seen), "*");
});
</script></body>"""
# A window has a least width, a frame has none.
FRAMES = """<!DOCTYPE html><body><script>
const seen = {};
addEventListener("message", event => {
  seen[JSON.parse(event.data).width] = JSON.parse(event.data);
  document.body.setAttribute("data-seen", JSON.stringify(seen));
});
</script><iframe src="report.html" width="1400" height="900" style="border: 0"></iframe>
<iframe src="report.html" width="420" height="900" style="border: 0"></iframe></body>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser(dark: bool, report: str, tmp_path: Path) -> None:
    """A copy whose policy lets one script run looks at the page that it is in, wide and narrow."""
    page = report.replace("default-src 'none'; ", "default-src 'none'; script-src 'unsafe-inline'; ")
    (tmp_path / "report.html").write_text(page.replace("</body>", LOOK), encoding="utf-8")
    (tmp_path / "frames.html").write_text(FRAMES, encoding="utf-8")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    assert BROWSER is not None
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}", *scheme,
         "--window-size=1500,1200", "--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=5000",
         "--dump-dom", (tmp_path / "frames.html").as_uri()],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    found = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert found is not None, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr
    both = json.loads(unescape(found[1]))
    assert list(both) == ["420", "1400"]
    for width, seen in both.items():
        assert seen["errors"] == []
        assert seen["dark"] == dark
        assert (seen["back"] == "rgb(255, 255, 255)") != dark
        assert seen["label"] == seen["ink"]
        assert seen["needed"] <= int(width)
        assert seen["wide"] == []
        assert len(seen["figures"]) == 9
        assert min(seen["figures"]) > 100


def test_a_trimming_admission_shows_the_slots_beside_the_cut(
    tmp_path: Path, manifest: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_synthetic(tmp_path / "dense", SyntheticLaw(num_requests=12, output_len=24, num_speculative_tokens=3))
    config = CompareConfig(("online-logistic", "position-rate"), admission="fixed:1", offsets=1, bootstrap=100)
    (found,) = compare([trace.path], config, workers=1)
    cut = found["rows"][0]["beside_the_cut"]
    page = text_of(comparison_html([found], manifest))
    assert f"online-logistic {cut['count']} {cut['log_loss']:.4f}" in page
    print_comparison(found)
    assert f"{cut['log_loss']:.4f}, " in capsys.readouterr().out
    (whole,) = compare([trace.path], replace(config, admission="full"), workers=1)
    assert "Beside the cut" not in text_of(comparison_html([whole], manifest))
