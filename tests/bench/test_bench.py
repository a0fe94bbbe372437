"""`dadlm bench` on a CPU: every system is measured, floors are floors, the file says where it was made."""

import json
import re
from pathlib import Path

import pytest
import torch
from tests.decode.tiny import silence_eot, tiny

from dadlm.bench import decode
from dadlm.bench.decode import _own_peak_mib
from dadlm.bench.lossless import bench_lossless
from dadlm.bench.machine import Machine
from dadlm.bench.train import step_flops
from dadlm.cli import main
from dadlm.recipes import recipe


def bench(kind: str, tmp_path: Path, *words: str) -> dict:
    file = tmp_path / "results" / f"{kind}.json"
    assert main(["bench", kind, "--device", "cpu", "--out", str(file), *words]) == 0
    result = json.loads(file.read_text(encoding="utf-8"))
    assert result["kind"] == kind and result["device"] and result["versions"]["torch"]
    assert result["ceilings"]["tflops"] > 0 and result["ceilings"]["gbytes"] > 0
    return result


def test_decode(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = "--scale", "tour", "--block-sizes", "8", "--batches", "2", "--plot", str(tmp_path / "steps.svg")
    result = bench("decode", tmp_path, *words)
    late = "DA-DLM N=8 K=4 late"
    systems = ["AR", "BD3LM N=8", "BD3LM N=8 edges", "DA-DLM N=8 K=4", late, f"{late} edges"]
    assert [row["system"] for row in result["steps"]] == systems
    assert all(0 < row["floor_ms"] < row["ms"] for row in result["steps"])
    assert all(row["share_of_floor"] == row["floor_ms"] / row["ms"] for row in result["steps"])
    assert all(row["launches"] is None for row in result["steps"]), "nothing is captured on a CPU"
    ratios = [row["ratio_to_bd3lm"] for row in result["steps"]]
    ms = [row["ms"] for row in result["steps"]]
    assert ratios == [None, None, None, ms[3] / ms[1], ms[4] / ms[1], ms[5] / ms[2]]
    ways = {"nucleus", "FH", "T=8", "T=4", "T=2", *(f"T={T}, rows wait for none" for T in (8, 4, 2))}
    assert {row["decoding"] for row in result["texts"]} == ways
    assert late in (tmp_path / "steps.svg").read_text()
    assert all(row["tokens_per_second"] > 0 for row in result["texts"])
    assert late in capfd.readouterr().err
    assert {"AR", "BD3LM N=8"} <= {row["system"] for row in result["texts"]}


def test_texts_of_random_weights_do_not_end() -> None:
    """One in 32 tokens is end-of-text: a text of batch 1 may have ended before its first step is timed."""
    machine, context = Machine("cpu"), recipe("tour-ar").model.context
    for seed, config in enumerate(decode._systems("tour", (4,)).values()):
        torch.manual_seed(seed)
        run = decode._Run(decode._Endless(config).eval(), 1, 8, 32, machine)
        run.time(100)
        assert run.index == context - 8 and run.times, config.family


def test_a_peak_is_of_one_model_though_all_are_there() -> None:
    """On a GPU: 100 MiB were held, half a MiB of them this model's, and 150 when it worked."""

    class Gpu:
        def peak_mib(self) -> float:
            return 150.0

    model = torch.nn.Linear(256, 512, bias=False)
    assert _own_peak_mib(model, 100.0, Gpu()) == 50.5  # type: ignore[arg-type]


def test_train(tmp_path: Path) -> None:
    result = bench("train", tmp_path, "--scale", "tour", "--rows", "2", "--only", "BD3LM", "late")
    names = ["BD3LM N=4", "DA-DLM N=4 K=4 late"]
    assert [row["system"] for row in result["steps"]] == [
        name + edges for name in names for edges in ("", " edges")
    ]
    assert all(0 < row["flop_use"] < 1 for row in result["steps"])


def test_kernels(tmp_path: Path) -> None:
    result = bench("kernels", tmp_path, "--rows", "1")
    assert len(result["pieces"]) == 4 and all(row["ms"] > 0 for row in result["pieces"])


@pytest.mark.parametrize("draft", ["bd3lm", "lookup"])
def test_lossless(draft: str, tmp_path: Path) -> None:
    words = ["--draft", draft, "--trees", "4", "--tokens", "12", "--batches", "2"]
    result = bench("lossless", tmp_path, *words)
    rows = {row["system"]: row for row in result["texts"]}
    assert list(rows) == ["ar", "tree of 4", "chosen"]
    least = {"bd3lm": 1.3, "lookup": 1.0}[draft]
    assert rows["ar"]["ratio_to_ar"] == 1 and rows["tree of 4"]["tokens_per_cycle"] > least
    assert all(row["tokens_per_second"] > 0 for row in rows.values())
    assert rows["tree of 4"]["draft_ms"] > 0 < rows["tree of 4"]["verify_ms"]


def test_lossless_of_a_model_that_drafts_for_itself() -> None:
    model = silence_eot(tiny("bd3lm", causal_context=True))
    result = bench_lossless(model, batches=(1,), trees=(4,), tokens=8, rounds=1)
    rows = {row["system"]: row for row in result["texts"]}
    assert list(rows) == ["ar", "tree of 4", "tree of 4, one pass", "chosen"]
    assert rows["ar"]["tokens_per_pass"] == 1
    assert rows["tree of 4, one pass"]["tokens_per_pass"] > rows["tree of 4"]["tokens_per_pass"]


def test_flops_of_a_step_by_hand() -> None:
    """Two layers, width 64, 32 tokens a row, vocabulary 34; one row."""
    layer, head = 12 * 64 * 64, 34 * 64
    mdlm = 6 * 2 * 32 * layer + 12 * 2 * 32 * 32 * 64 + 6 * 16 * head
    assert step_flops(recipe("tour-mdlm").model, 1) == mdlm
    nodes = 32 * (1.25 + 2 * (2.5 + 1 / 4))  # most of the clean stream's last layer is left out; K = 4
    dadlm = 6 * nodes * layer + 12 * nodes * 16 * 64 + 6 * 16 * 4 * head
    assert step_flops(recipe("tour-dadlm").model, 1) == pytest.approx(dadlm)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["decode", "--batches", "4", "0"], r"batches must be at least 1, got \(4, 0\)"),
        (["decode", "--block-sizes", "0"], "block_sizes must be at least 1"),
        (["kernels", "--rows", "0"], "rows must be at least 1"),
        (["lossless", "--batches", "0"], "batches must be at least 1"),
        (["train", "--scale", "tour", "--only", "GPT"], "no system is called GPT: .*MDLM"),
    ],
)
def test_nothing_to_measure_is_refused(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words, "--device", "cpu"]) == 2
    assert re.search(said, capfd.readouterr().err)


def test_a_plot_that_cannot_be_written_is_refused_before_anything_is_measured(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "decode", "--scale", "tour", "--device", "cpu", "--plot", "steps.txt"]) != 0
    said = capfd.readouterr()
    assert "choose a name that ends in .svg, .png, .pdf" in said.err and "BD3LM" not in said.err


@pytest.mark.parametrize("words", [[], ["speed"], ["--help"]])
def test_usage(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == (0 if words == ["--help"] else 2)
    said = capfd.readouterr()
    assert "decode|train|kernels|lossless" in said.out + said.err
