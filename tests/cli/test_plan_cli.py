"""`avsim plan`, through the Typer app."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from avsim.cli.main import app
from avsim.costs import CostCard, CurveCost, dump
from avsim.errors import InputError
from avsim.manifest import json_text

RUN = CliRunner()
TRACES = Path(__file__).parents[2] / "traces"
B300 = ("--cost", "deepseek-v4-flash-tp4-b300")
RATES = ("--conditional", "0.66,0.58,0.52")
FEW = ("--draws", "40", "--concurrency", "8")
GPU = ("--model", "llama-3.1-8b", "--gpu", "h200")
TABLE = "policy,num_speculative_tokens,concurrency,throughput_tok_s\n"
ROWS = "none,0,1,120\nfixed,2,1,230\nnone,0,16,1500\nfixed,2,16,2600\n"


def run(*arguments: str | Path) -> str:
    result = RUN.invoke(app, ["plan", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str | Path) -> str:
    with pytest.raises(InputError) as error:
        RUN.invoke(app, ["plan", *map(str, arguments)], catch_exceptions=False)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2
    return str(error.value)


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_a_plan_prints_what_it_holds_on_and_what_it_leaves_out() -> None:
    text = words(run(*RATES, *B300, "--draws", "40", "--concurrency", "1,256"))
    for part in (
        "simulated on deepseek-v4-flash-tp4-b300 (published)", "AL 2.24 at K = 3", "AUC 0.", "calibration error",
        "8,192 tokens of context", "AL needed", "95 % of 40 draws", "each by 10 %", "Left out: queues", "AV's own",
        "one drafting cost for every depth", "without LM head", "plain decoding is ahead of",
    ):  # fmt: skip
        assert part in text, part
    assert "\x1b" not in text
    assert "CONTEXT" not in text
    assert "CONTEXT" in run(*RATES, *B300, *FEW, "--context", "500")
    assert "-0.0" not in text


def test_the_cliff_has_a_column_only_where_a_line_has_one(tmp_path: Path) -> None:
    assert "of gain: cliff" not in run(*RATES, *B300, *FEW)
    verify = ((1, 10.0), (64, 12.0), (65, 42.0), (256, 46.0))
    card = CostCard("made", "none", "none", "synthetic", "a test")
    cost = tmp_path / "cliff.json"
    cost.write_text(json_text(dump(CurveCost(verify, ((1, 0.5), (64, 0.5)), 64, card=card))), encoding="utf-8")
    text = run("--conditional", "0.95", "--cost", cost, "--draws", "40", "--concurrency", "8,36")
    assert "of gain: cliff" in text
    assert "SYNTHETIC" in text


def test_a_roofline_says_that_it_is_an_estimate_and_experts_that_latency_is_unknown() -> None:
    dense = words(run(*RATES, *GPU, *FEW))
    assert "(roofline)" in dense
    assert "ROOFLINE ESTIMATE" in dense
    assert "each by 30 %" in dense
    assert "layer of experts" not in dense
    experts = words(run(*RATES, "--model", "glm-4.5-air", "--gpu", "h200", "--tp", "4", "--drafter", "mtp", *FEW))
    assert "layer of experts (half to twice" in experts


def test_json_is_complete_and_the_same_each_time() -> None:
    text = run(*RATES, *B300, *FEW, "--json")
    assert text == run(*RATES, *B300, *FEW, "--json")
    data = json.loads(text)
    assert data["simulated"] is True
    assert data["acceptance_length"] == pytest.approx(1 + 0.66 + 0.66 * 0.58 + 0.66 * 0.58 * 0.52)
    line = data["loads"][0]
    assert [fixed["depth"] for fixed in line["fixed"]] == [0, 1, 2, 3]
    assert sum(fixed["best_in"] for fixed in line["fixed"]) == pytest.approx(1)
    best = line["fixed"][line["best_fixed"]]
    assert line["over_tuned"]["middle"] <= best["adaptive_over_it"]["middle"] + 1e-12
    assert set(data["auc"]) == {"middle", "low", "high"}
    assert (
        {"first", "for_good", "low", "high", "most"} == set(data["crossover_fixed"]) == set(data["crossover_adaptive"])
    )
    assert text != run(*RATES, *B300, *FEW, "--json", "--seed", "1")


def test_what_lies_outside_the_measured_costs_is_named() -> None:
    text = words(run(*RATES, *B300, "--draws", "40", "--concurrency", "8,300"))
    assert "Outside what was measured: 300 requests, beyond the last measured count 256" in text
    assert "takes over at 512 requests is outside what was measured" in text
    assert "Outside" not in words(run(*RATES, *B300, *FEW))
    hopeless = words(run("--conditional", "0.02,0.02", *B300, *FEW))
    assert "plain decoding is ahead of adaptive verification at every load tried" in hopeless


def test_three_forms_of_acceptance_agree() -> None:
    def loads(*form: str) -> list[dict[str, Any]]:
        return json.loads(run(*form, *B300, *FEW, "--json"))["loads"]

    expected = loads("--conditional", "0.8,0.5")
    for form in (("--marginal", "0.8,0.4"), ("--lengths", "1.8,2.2")):
        for mine, theirs in zip(loads(*form)[0]["fixed"], expected[0]["fixed"], strict=True):
            assert mine["throughput_tok_s"]["middle"] == pytest.approx(theirs["throughput_tok_s"]["middle"], rel=1e-9)


def test_lengths_that_no_law_has_are_mended_with_a_note() -> None:
    text = words(run("--lengths", "1.8,2.5,2.4", *B300, *FEW))
    assert "do not come from one acceptance law" in text


def test_quality_is_a_parameter() -> None:
    data = json.loads(run(*RATES, *B300, *FEW, "--json", "--auc", "0.75", "--auc-sd", "0", "--calibration-slope", "1",
                          "--calibration-offset", "0.8"))  # fmt: skip
    assert data["auc"]["middle"] == pytest.approx(0.75, abs=2e-3)
    assert data["calibration_error"]["low"] > 0.05
    calm = json.loads(run(*RATES, *B300, *FEW, "--json", "--calibration-slope", "1", "--calibration-offset", "0"))
    assert calm["calibration_error"]["high"] < 1e-5


def test_quality_can_be_borrowed_from_a_trace() -> None:
    arguments = (*RATES, *B300, *FEW, "--borrow", TRACES / "smollm2-eagle-greedy")
    data = json.loads(run(*arguments, "--json"))
    borrowed = data["borrowed"]
    assert borrowed["estimator"] == "online-logistic"
    assert data["auc"]["middle"] == pytest.approx(sum(borrowed["auc"]) / len(borrowed["auc"]), abs=0.02)
    assert "Confidences are those of online-logistic on" in words(run(*arguments))
    floor = json.loads(run(*arguments, "--estimator", "bayes-logistic", "--json"))["borrowed"]
    assert floor["estimator"] == "bayes-logistic"


def test_a_written_plan_repeats_byte_for_byte(tmp_path: Path) -> None:
    first, again = tmp_path / "plan.json", tmp_path / "again.json"
    run(*RATES, *GPU, *FEW, "--auc", "0.8", "--out", first)
    run("--manifest", first, "--out", again)
    assert first.read_bytes() == again.read_bytes()
    data = json.loads(first.read_text(encoding="utf-8"))
    assert data["command"] == "plan"
    assert data["config"]["conditional"] == "0.66,0.58,0.52"
    assert set(data["inputs"]) == {"cost"}
    assert "avsim" in data["versions"]
    assert data["plan"] == json.loads(run("--manifest", first, "--json"))
    assert "--overwrite" in refused(*RATES, *GPU, *FEW, "--out", first)
    run(*RATES, *GPU, *FEW, "--out", first, "--overwrite")
    data["inputs"]["cost"] = "0" * 64
    first.write_text(json.dumps(data), encoding="utf-8")
    assert "not the one of the recorded run" in refused("--manifest", first)


def test_a_table_prints_its_assumptions(tmp_path: Path) -> None:
    path, out = tmp_path / "table.csv", tmp_path / "plan.json"
    path.write_text(TABLE + ROWS, encoding="utf-8")
    text = words(run("--table", path, "--draws", "40", "--out", out))
    assert "fitted to 4 cells" in text
    for part in ("K = 2", "none assumed", "as if the engine's own profile were right", "priors.toml", "published size"):
        assert part in text
    data = json.loads(out.read_text(encoding="utf-8"))
    assert data["plan"]["from"] == "throughput table"
    assert set(data["inputs"]) == {"table"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "exactly one form"),
        (("--marginal", "0.8", "--conditional", "0.8", *B300), "given: --conditional, --marginal"),
        (B300, "exactly one form"),
        (("--conditional", "good", *B300), "--conditional must be numbers"),
        (("--conditional", "0.8,,0.7", *B300), "--conditional must be numbers"),
        (("--conditional", "", *B300), "--conditional must be numbers"),
        (("--conditional", "1.0,0.5", *B300), "position 0 is 1"),
        (("--conditional", "80,70", *B300), "below 1"),
        (("--conditional", "nan", *B300), "finite"),
        (("--marginal", "0.5,0.6", *B300), "must fall"),
        (("--lengths", "0.9", *B300), "between 1 and K + 1"),
        (RATES, "name step costs"),
        ((*RATES, "--gpu", "h100"), "name step costs"),
        ((*RATES, "--model", "llama-3.1-8c", "--gpu", "h100"), "did you mean 'llama-3.1-8b'"),
        ((*RATES, "--model", "llama-3.1-8b", "--gpu", "h10"), "did you mean 'h100'"),
        ((*RATES, *GPU, "--drafter", "eagel"), "did you mean 'eagle'"),
        ((*RATES, *GPU, "--tp", "0"), "--tp must be at least 1"),
        ((*RATES, "--model", "deepseek-v3", "--gpu", "h100"), "raise tp"),
        ((*RATES, "--cost", "deepseek-v4-flash-tp4-b30"), "did you mean"),
        ((*RATES, *B300, "--gpu", "h100"), "leave --gpu out"),
        ((*RATES, *B300, "--tp", "2"), "leave --tp out"),
        ((*RATES, *B300, "--drafter", "eagle"), "leave --drafter out"),
        ((*RATES, *B300, "--auc", "0.4"), "above 0.5"),
        ((*RATES, *B300, "--auc", "80"), "at most 0.97"),
        ((*RATES, *B300, "--auc", "0.8", "--auc-sd", "0.5"), "between 0 and 0.2"),
        ((*RATES, *B300, "--auc-sd", "0.1"), "leave it out"),
        ((*RATES, *B300, "--calibration-slope", "-1"), "calibration slope"),
        ((*RATES, *B300, "--calibration-offset", "9"), "calibration offset"),
        ((*RATES, *B300, "--estimator", "online-logistic"), "--borrow"),
        ((*RATES, *B300, "--borrow", str(TRACES / "smollm2-eagle-live")), "on-policy"),
        ((*RATES, *B300, "--borrow", str(TRACES / "smollm2-eagle-greedy"), "--estimator", "onlin-logistic"), "did you"),
        ((*RATES, *B300, "--borrow", str(TRACES / "smollm2-eagle-greedy"), "--estimator", "position-rate"), "AUC of"),
        ((*RATES, *B300, "--borrow", str(TRACES / "smollm2-eagle-greedy"), "--auc", "0.8"), "leave --auc out"),
        ((*RATES, *B300, "--borrow", "nowhere"), "nowhere"),
        ((*RATES, *B300, "--draws", "5"), "at least 40"),
        ((*RATES, *B300, "--context", "-1"), "context"),
        ((*RATES, *B300, "--cost-sd", "-1"), "cost uncertainty"),
        ((*RATES, *B300, "--av-overhead-ms", "-1"), "--av-overhead-ms"),
        ((*RATES, *B300, "--vocab", "0"), "--vocab must be at least 1"),
        ((*RATES, *B300, "--seed", "-1"), "--seed"),
        ((*RATES, *B300, "--concurrency", "0"), "concurrency"),
        ((*RATES, *B300, "--concurrency", ""), "concurrency"),
        ((*RATES, *B300, "--concurrency", "eight"), "whole numbers"),
        ((*RATES, *B300, "--explain", "chat"), "--explain belongs to --table"),
        ((*RATES, *B300, "--depth", "2"), "--depth belongs to --table"),
        ((*RATES, *B300, "--capture-limit", "512"), "--capture-limit belongs to --table"),
        (("--table", "nowhere.csv"), "nowhere.csv"),
        (("--table", "x.csv", *RATES), "leave --conditional out"),
        (("--table", "x.csv", "--concurrency", "8"), "leave --concurrency out"),
        (("--table", "x.csv", "--context", "8"), "leave --context out"),
        (("--manifest", "x.json", *RATES), "leave the other options out"),
        (("--manifest", "x.json", "--av-overhead-ms", "0"), "leave the other options out"),
        (("--manifest", "nowhere.json"), "nowhere.json"),
        ((*RATES, *B300, "--out", str(TRACES)), "folder"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(arguments: tuple[str, ...], says: str) -> None:
    assert says in refused(*arguments)


def test_a_table_without_a_column_or_with_a_bad_cell_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("policy,concurrency\nnone,1\n", encoding="utf-8")
    assert "no column 'num_speculative_tokens'" in refused("--table", path)
    path.write_text(TABLE + "none,0,1,fast\n", encoding="utf-8")
    assert "row 2" in refused("--table", path)
    path.write_text(TABLE + "none,0,1,100\nnone,0,8,100\n", encoding="utf-8")
    assert "one that drafts" in refused("--table", path)
    path.write_text(TABLE + ROWS, encoding="utf-8")
    assert "largest, 2" in refused("--table", path, "--depth", "3")
    assert "0.005" in refused("--table", path, "--auc", "0.8", "--auc-sd", "0")


def test_a_manifest_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"manifest_version": 1, "config": {"trace": "x"}, "inputs": {}}), encoding="utf-8")
    assert "not that of a plan" in refused("--manifest", path)
    path.write_text(json.dumps({"manifest_version": 1, "inputs": {}}), encoding="utf-8")
    assert "not that of a plan" in refused("--manifest", path)
    path.write_text("{}", encoding="utf-8")
    assert "not a manifest" in refused("--manifest", path)
