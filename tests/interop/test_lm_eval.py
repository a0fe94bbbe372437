"""The lm-evaluation-harness adapter: scores against independent computations, and a small task of our own."""

import itertools
import json
import math
import os
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.decode.tiny import BLOCK_FAMILIES, prompt_of, tiny

import dadlm
from dadlm import dag
from dadlm.errors import ConfigError
from dadlm.interop import likelihood
from dadlm.interop.likelihood import score_continuation
from dadlm.model import Context
from dadlm.objective import losses
from dadlm.tokens import word_level

WORDS = [f"w{number}" for number in range(28)]


def revealed_logp(model, ids: list[int], first: int, masked: list[int]) -> torch.Tensor:
    """Log-probabilities [N, V] of the block at `first`, so masked; one block alone, without a cache."""
    N, context = model.config.block_size, Context() if first else None
    block = torch.tensor([[(ids[first:] + [0] * N)[:N]]])
    hidden = torch.tensor([[[first + i in masked for i in range(N)]]])
    with torch.inference_mode():
        if first:
            model.read(torch.tensor([ids[:first]]), context)
        said = model.denoise(block, hidden, torch.tensor([[first]]), context, packed=False)
        states = said.nodes.groups(said.nodes.to_slots(said.hidden))[0, 0]
        logp = model.head.logits(states, torch.arange(states.shape[1])).log_softmax(-1)
        return (dag.node_marginals(model.transition_logp(said))[0, 0, ..., None] + logp).logsumexp(1)


def by_orders(model, context: list[int], tokens: list[int]) -> list[float]:
    """log p of the continuation for each combination of orders in its blocks."""
    ids, N = context + tokens, model.config.block_size
    blocks: list[list[float]] = []
    for first in range(len(context) // N * N, len(ids), N):
        asked = [i for i in range(first, first + N) if len(context) <= i < len(ids)]
        after = [i for i in range(first, first + N) if i >= len(ids)]
        values = []
        for order in itertools.permutations(asked):
            hidden, value = list(order), 0.0
            for position in order:
                logp = revealed_logp(model, ids, first, hidden + after)
                value += float(logp[position - first, ids[position]])
                hidden.remove(position)
            values.append(value)
        blocks.append(values)
    return [sum(parts) for parts in itertools.product(*blocks)]


@pytest.mark.parametrize("family", BLOCK_FAMILIES)
@pytest.mark.parametrize(("known", "asked"), [(3, 1), (6, 4), (9, 3)])
def test_every_draw_is_one_order_and_all_orders_come_equally_often(family, known, asked):
    model, draws = tiny(family), 60
    ids = prompt_of(known + asked)
    orders = by_orders(model, ids[:known], ids[known:])
    values = [score_continuation(model, ids[:known], ids[known:], seed=seed).logp for seed in range(draws)]
    seen = [min(range(len(orders)), key=lambda n: abs(orders[n] - value)) for value in values]
    assert max(abs(orders[n] - value) for n, value in zip(seen, values, strict=True)) < 1e-4
    assert set(seen) == set(range(len(orders)))
    twice = score_continuation(model, ids[:known], ids[known:], draws=2).logp  # the mean of two draws
    assert min(abs(twice - (one + other) / 2) for one in orders for other in orders) < 1e-4
    mean, expected = sum(values) / draws, sum(orders) / len(orders)
    variance = sum((value - expected) ** 2 for value in orders) / len(orders)
    assert abs(mean - expected) < 1e-4 + 4 * (variance / draws) ** 0.5
    assert expected <= math.log(sum(map(math.exp, orders)) / len(orders)) + 1e-6  # a bound indeed


@pytest.mark.parametrize("chunk", [1, 3, 128])
def test_copies_scored_at_once_do_not_matter(chunk, monkeypatch):
    model, ids = tiny("dadlm"), prompt_of(20)
    expected = score_continuation(model, ids[:3], ids[3:])
    monkeypatch.setattr(likelihood, "_COPIES", chunk)
    score = score_continuation(model, ids[:3], ids[3:])
    assert score.logp == pytest.approx(expected.logp, abs=1e-4)


def test_ar_is_exact():
    model, ids = tiny("ar"), prompt_of(12)
    with torch.no_grad():
        nll = losses(model, torch.tensor([ids]), None).train[0]
    for known in (1, 5, 11):
        score = score_continuation(model, ids[:known], ids[known:])
        assert score.logp == pytest.approx(-float(nll[known - 1 :].sum()), abs=1e-5)


@pytest.mark.parametrize("family", ["ar", *BLOCK_FAMILIES])
def test_greedy_means_the_most_probable_token_each_time(family):
    model, ids = tiny(family), prompt_of(6)
    if family == "ar":
        tokens = dadlm.generate(model, ids, max_new_tokens=5, temperature=0.0, seed=0).tokens[0]
    else:
        tokens = []
        for at in range(6, 11):
            first = at // 4 * 4
            # What follows within a block is masked up to the end of the continuation and beyond alike.
            logp = revealed_logp(model, ids + tokens, first, list(range(at, first + 4)))
            tokens.append(int(logp[at - first].argmax()))
    assert score_continuation(model, ids, tokens).greedy
    for wrong in range(len(tokens)):
        changed = [*tokens[:wrong], (tokens[wrong] + 1) % 28, *tokens[wrong + 1 :]]
        assert not score_continuation(model, ids, changed).greedy


def test_what_cannot_be_scored():
    with pytest.raises(ConfigError, match="mdlm"):
        score_continuation(tiny("mdlm"), [1], [2])
    for context, tokens in (([], [1]), ([1] * 60, [1] * 5)):
        with pytest.raises(ConfigError, match="64 together at most"):
            score_continuation(tiny("ar"), context, tokens)
    with pytest.raises(ConfigError, match="draws"):
        score_continuation(tiny("bd3lm"), [1], [1], draws=0)
    assert score_continuation(tiny("bd3lm"), [1], []).logp == 0


def test_missing_harness_names_the_pip_line():
    program = "import sys; sys.modules['lm_eval'] = None; import dadlm.interop.lm_eval"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert "pip install 'dadlm[lm-eval]'" in run.stderr


QUESTIONS = [
    {
        "question": f"w{n} w{n + 1} w{n + 2}",
        "choices": [f"w{(n * k) % 28} w{(n + k) % 28}" for k in (1, 2, 3)],
        "answer": n % 3,
    }
    for n in range(6)
]
TASKS = {
    "choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    },
    "write": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "w1",
        "generation_kwargs": {"until": ["w3"], "max_gen_toks": 6, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
    "read": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}} {{choices | join(' ')}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
}


def write_tasks(folder: Path) -> None:
    (folder / "questions.jsonl").write_text("".join(json.dumps(q) + "\n" for q in QUESTIONS))
    for name, task in TASKS.items():
        data = {"data_files": {"test": str(folder / "questions.jsonl")}, "cache_dir": str(folder / "cache")}
        common = {"task": f"dadlm_{name}", "dataset_path": "json", "dataset_kwargs": data}
        common |= {"test_split": "test"}
        (folder / f"{name}.yaml").write_text(json.dumps(common | task))  # JSON is YAML


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    """Runs the three tasks on a model; results and samples."""
    pytest.importorskip("lm_eval")
    from lm_eval.api.registry import get_model
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager

    import dadlm.interop.lm_eval  # registers the model

    folder = tmp_path_factory.mktemp("tasks")
    write_tasks(folder)
    manager = TaskManager(include_path=str(folder), include_defaults=False)

    def run(family):
        model = tiny(family, tokenizer=word_level(WORDS))
        dadlm.save(model, folder / family)
        adapter = get_model("dadlm").create_from_arg_string(f"pretrained={folder / family}")
        tasks = manager.load([f"dadlm_{name}" for name in TASKS])
        # Not simple_evaluate: that also calls pip to list what is installed, and pip asks the network.
        found = evaluate(adapter, tasks, bootstrap_iters=0, log_samples=True)
        assert found is not None
        return model, found

    return run


@pytest.mark.parametrize("family", ["ar", *BLOCK_FAMILIES])
def test_a_small_task(harness, family):
    model, found = harness(family)
    tokenizer = model.tokenizer
    right, texts, nats, words = 0, [], 0.0, 0
    for question in QUESTIONS:
        context = tokenizer.encode(question["question"])
        logp = [score_continuation(model, context, tokenizer.encode(c)).logp for c in question["choices"]]
        right += max(range(3), key=logp.__getitem__) == question["answer"]
        text = " ".join([question["question"], *question["choices"]])
        nats -= score_continuation(model, [tokenizer.eot_id], tokenizer.encode(text)).logp
        words += len(text.split())
    results = found["results"]
    assert results["dadlm_choice"]["acc,none"] == pytest.approx(right / 6)
    assert results["dadlm_read"]["word_perplexity,none"] == pytest.approx(math.exp(nats / words), rel=1e-4)
    prompts = [question["question"] for question in QUESTIONS]
    seeds = [zlib.crc32(prompt.encode()) for prompt in prompts]
    texts = dadlm.generate(model, prompts, max_new_tokens=6, path="viterbi", seed=seeds).texts
    written = [sample["resps"][0][0] for sample in found["samples"]["dadlm_write"]]
    assert written == [text.split("w3")[0] for text in texts]


def test_the_harness_as_a_command(tmp_path):
    """`dadlm lm-eval` in a process of its own, with a task that lies in a folder."""
    pytest.importorskip("lm_eval")
    model = tiny("bd3lm", tokenizer=word_level(WORDS))
    dadlm.save(model, tmp_path / "model")
    write_tasks(tmp_path)
    words = [
        sys.executable,
        "-m",
        "dadlm.cli",
        "lm-eval",
        "--tasks",
        "dadlm_choice",
        "--include_path",
        tmp_path,
    ]
    words += ["--model_args", f"pretrained={tmp_path / 'model'}", "--output_path", tmp_path / "found.json"]
    # The harness lists what is installed, for which it calls pip.
    offline = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    env = {**os.environ, **offline, "PYTHONPATH": str(Path(dadlm.__file__).parents[1])}
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    (found,) = tmp_path.glob("found*.json")
    results = json.loads(found.read_text())
    assert results["config"]["model"] == "dadlm"
    right = 0
    for question in QUESTIONS:
        context, choices = question["question"], question["choices"]
        ids = [model.tokenizer.encode(text) for text in (context, *choices)]
        logp = [score_continuation(model, ids[0], choice).logp for choice in ids[1:]]
        right += max(range(3), key=logp.__getitem__) == question["answer"]
    assert results["results"]["dadlm_choice"]["acc,none"] == pytest.approx(right / 6)


def test_another_model_or_command_is_left_alone(monkeypatch):
    pytest.importorskip("lm_eval")
    from dadlm.interop import lm_eval

    called = []
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: called.append(sys.argv[1:]))
    monkeypatch.setattr(sys, "argv", ["dadlm"])
    for words in (
        ["--tasks", "x"],
        ["run", "--model", "hf"],
        ["run", "-C", "f"],
        ["ls", "tasks"],
        ["--help"],
    ):
        lm_eval.main(words)
    assert called == [
        ["run", "--model", "dadlm", "--tasks", "x"],
        ["run", "--model", "dadlm", "--model", "hf"],
        ["run", "-C", "f"],
        ["ls", "tasks"],
        ["--help"],
    ]


@pytest.fixture
def adapter(tmp_path):
    pytest.importorskip("lm_eval")
    from dadlm.interop.lm_eval import HarnessModel

    dadlm.save(tiny("dadlm", context=32, tokenizer=word_level(WORDS)), tmp_path / "model")
    return HarnessModel(pretrained=str(tmp_path / "model"))


def asked(prompt: str, **options) -> SimpleNamespace:
    return SimpleNamespace(args=(prompt, {"until": [], "max_gen_toks": 8} | options))


def test_a_text_does_not_depend_on_what_else_is_asked(adapter):
    alone = adapter.generate_until([asked("w1 w2")])
    beside = adapter.generate_until([asked("w5"), asked("w6", max_gen_toks=4), asked("w1 w2")])
    assert beside[2:] == alone
    twice = adapter.generate_until([asked("w1 w2", do_sample=True)] * 2)
    assert twice[0] != twice[1], "the same once more is another sample"


def test_half_of_the_context_is_for_the_prompt(adapter, monkeypatch):
    seen = {}

    def generate(model, ids, **how):
        seen.update(how, ids=ids)
        return SimpleNamespace(texts=[""] * len(ids))

    monkeypatch.setattr("dadlm.interop.lm_eval.generate", generate)
    adapter.generate_until([asked("w1 " * 30, max_gen_toks=1024, do_sample=True, top_k=5)])
    assert (seen["max_new_tokens"], len(seen["ids"][0]), seen["temperature"]) == (16, 16, 1.0)
    assert seen["top_k"] == 5
    for asked_for in (32, 40):
        with pytest.raises(ConfigError, match="32 together at most"):
            adapter._score([1] * 50, [1] * asked_for)
