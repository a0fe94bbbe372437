"""Related samplers: on joints that can be enumerated, and beside the library's loop."""

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decode.tiny import many, prompt_of, silence_eot, tiny
from torch import Tensor

from dadlm import generate
from dadlm.tokens import prepare, word_level
from research import copula, edge_texts, rivals
from research.blocks import Blocks, Independent, write
from research.copula import Dcd
from research.files import FOLDER
from research.punt import Punt, divergence, independent, ranks

V = 3


class Joint:
    """A distribution over blocks of N tokens, as a table."""

    def __init__(self, p: Tensor) -> None:
        self.p, self.N = p / p.sum(), p.dim()

    def marginal(self, place: int, known: dict[int, int]) -> Tensor:
        """log p(x_place | known) [V]."""
        p = self.p
        for where, token in known.items():
            p = p * (torch.arange(V) == token).view([V if i == where else 1 for i in range(self.N)])
        p = p.sum([i for i in range(self.N) if i != place])
        return (p / p.sum()).log()

    def believe(self, ids: Tensor, masked: Tensor) -> Tensor:
        """What a perfect diffusion model says [n, N, V]."""
        both = zip(ids, masked, strict=True)
        known = [{i: int(row[i]) for i in range(self.N) if not open_[i]} for row, open_ in both]
        return torch.stack([torch.stack([self.marginal(i, one) for i in range(self.N)]) for one in known])

    def after(self, place: int, ids: Tensor, rows: Tensor) -> Tensor:
        """What a perfect AR model says [m, V]."""
        return torch.stack(
            [self.marginal(place, {i: int(ids[r, i]) for i in range(place)}) for r in rows.tolist()]
        )

    def given(self, known: dict[int, int]) -> Tensor:
        """p(block | known), as a table."""
        p = self.p
        for where, token in known.items():
            p = p * (torch.arange(V) == token).view([V if i == where else 1 for i in range(self.N)])
        return p / p.sum()


def random_joint(N: int, seed: int) -> Joint:
    return Joint(torch.rand([V] * N, generator=torch.Generator().manual_seed(seed)).double() ** 3)


def chain(N: int, seed: int) -> Joint:
    generator, p = torch.Generator().manual_seed(seed), torch.ones([V] * N).double()
    for i in range(N - 1):
        link = torch.rand(V, V, generator=generator).double() ** 3
        p = p * link.view([V if j in (i, i + 1) else 1 for j in range(N)])
    return Joint(p)


def written_by_copula(joint: Joint, known: dict[int, int]) -> Tensor:
    """The probability of each block, when DCD draws all that is open in one step."""
    N, masked = joint.N, torch.tensor([[i not in known for i in range(joint.N)]])
    ids = torch.tensor([[known.get(i, 0) for i in range(N)]])
    logp = joint.believe(ids, masked)
    odds = logp - copula.remasked(logp, masked, lambda rows, open_: joint.believe(ids[rows], open_))
    found = torch.zeros_like(joint.p)
    for block in product(range(V), repeat=N):
        if any(block[i] != token for i, token in known.items()):
            continue
        chance = torch.ones([]).double()

        def pick(place: int, logits: Tensor, rows: Tensor, block=block) -> Tensor:
            nonlocal chance
            chance = chance * logits.softmax(-1)[0, block[place]]
            return torch.tensor([block[place]])

        drawn = copula.draw(ids, masked, masked, odds, joint.after, pick)
        assert tuple(drawn[0].tolist()) == block
        found[block] = chance
    return found


@pytest.mark.parametrize("known", [{}, {0: 1}, {0: 2, 1: 0}])
def test_a_perfect_copula_gives_the_joint_where_nothing_to_the_right_is_known(known: dict[int, int]) -> None:
    joint = random_joint(4, seed=1)
    torch.testing.assert_close(written_by_copula(joint, known), joint.given(known))


@pytest.mark.parametrize("known", [{3: 1}, {2: 0}, {1: 2, 3: 0}, {0: 1, 3: 2}])
def test_with_known_tokens_to_the_right_it_is_exact_on_a_chain(known: dict[int, int]) -> None:
    joint = chain(4, seed=2)
    torch.testing.assert_close(written_by_copula(joint, known), joint.given(known))


def test_one_open_token_is_drawn_as_the_diffusion_model_says() -> None:
    joint, known = random_joint(4, seed=3), {0: 0, 1: 2, 3: 1}
    torch.testing.assert_close(written_by_copula(joint, known), joint.given(known))


def test_what_two_open_tokens_owe_to_a_third_together_is_lost() -> None:
    """x_2 = x_0 + x_1 (mod 3): neither alone says anything of it, so the quotients are 1."""
    p = torch.zeros(V, V, V).double()
    for a, b in product(range(V), repeat=2):
        p[a, b, (a + b) % V] = 1
    found = written_by_copula(Joint(p), {2: 0})
    torch.testing.assert_close(found[:, :, 0], torch.full((V, V), 1 / V**2).double())


def test_ranks_and_divergence() -> None:
    masked, confidence = torch.tensor([[True, False, True, True]]), torch.tensor([[0.1, 9.0, 0.5, 0.5]])
    assert ranks(masked, confidence)[masked].tolist() == [2, 0, 1]
    p, q = torch.tensor([0.5, 0.5, 0.0]).log(), torch.tensor([0.25, 0.25, 0.5]).log()
    assert divergence(p, q).item() == pytest.approx(torch.tensor(2.0).log().item())


def grouped(groups: list[list[int]], seed: int) -> Joint:
    """Positions of a group are copies of each other, up to a little noise; groups have nothing to do with
    each other."""
    generator, N = torch.Generator().manual_seed(seed), sum(map(len, groups))
    p = torch.ones([V] * N).double()
    for group in groups:
        table = torch.full([V] * len(group), 0.01).double()
        for token in range(V):
            table[(token,) * len(group)] = 0.3 + torch.rand([], generator=generator).double()
        table = table * (1 + 0.2 * torch.rand(table.shape, generator=generator).double())
        order = sorted(group)
        p = p * table.view([V if i in order else 1 for i in range(N)])
    return Joint(p)


@many
@given(st.lists(st.integers(0, 3), min_size=2, max_size=7), st.integers(0, 10_000))
def test_the_test_finds_one_position_of_each_group_of_dependent_ones(labels: list[int], seed: int) -> None:
    groups = [[i for i, label in enumerate(labels) if label == one] for one in sorted(set(labels))]
    joint, N = grouped(groups, seed), len(labels)
    masked = torch.ones(1, N, dtype=torch.bool)
    ids = torch.randint(0, V, (1, N), generator=torch.Generator().manual_seed(seed))
    logp, tests = joint.believe(ids, masked), 0

    def believe(rows: Tensor, open_: Tensor) -> Tensor:
        nonlocal tests
        tests += 1
        return joint.believe(ids[rows], open_)

    kept = independent(logp, masked, believe, epsilon=1e-6)
    rank = ranks(masked, (logp.exp() * logp).sum(-1))[0]
    surest = {min(group, key=lambda i: int(rank[i])) for group in groups}
    assert {i for i in range(N) if kept[0, i]} == surest
    assert tests <= (N - 1).bit_length()


def test_a_threshold_that_nothing_passes_keeps_one_and_one_without_end_keeps_all() -> None:
    joint, masked = random_joint(5, seed=4), torch.ones(1, 5, dtype=torch.bool)
    ids = torch.zeros(1, 5, dtype=torch.int64)
    logp = joint.believe(ids, masked)
    for epsilon, count in ((-1.0, 1), (torch.inf, 5)):
        kept = independent(logp, masked, lambda _, open_: joint.believe(ids, open_), epsilon)
        assert kept.sum() == count


PROMPTS = torch.tensor([prompt_of(8, seed=seed) for seed in range(5)])


def model_and_ar() -> tuple:
    return silence_eot(tiny("bd3lm")), silence_eot(tiny("ar", seed=1))


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_the_loop_is_the_librarys(steps: int) -> None:
    model, _ = model_and_ar()
    texts, passes = write(model, PROMPTS, 12, Independent(steps), seed=3, batch=3)
    out = generate(model, PROMPTS.tolist(), max_new_tokens=12, seed=3, sampler="random", steps=steps)
    assert texts.tolist() == out.tokens
    assert passes["draw"] == sum(out.forward_passes)


def test_punt_without_a_threshold_is_a_step_a_block() -> None:
    model, _ = model_and_ar()
    texts, passes = write(model, PROMPTS, 12, Punt(torch.inf), seed=3)
    plain, _ = write(model, PROMPTS, 12, Independent(1), seed=3)
    assert texts.tolist() == plain.tolist()
    assert passes == {"draw": 5 * 3, "test": 5 * 3 * 2}


def test_punt_with_a_threshold_that_nothing_passes_writes_token_by_token() -> None:
    model, _ = model_and_ar()
    _, passes = write(model, PROMPTS, 12, Punt(-1.0))
    assert passes["draw"] == 5 * 12


@pytest.mark.parametrize("options", [{"steps": 1}, {"steps": 4, "order": "left"}])
def test_where_nothing_to_the_right_is_known_the_diffusion_model_says_nothing(options: dict) -> None:
    """With the divisor that masks again all quotients are 1: AR alone writes."""
    model, ar = model_and_ar()
    way, other = Dcd(ar, **options, reference="remask"), silence_eot(tiny("bd3lm", seed=9))
    texts, passes = write(model, PROMPTS, 12, way, top_p=1.0)
    again, _ = write(other, PROMPTS, 12, way, top_p=1.0)
    assert texts.tolist() == again.tolist()
    assert passes["copula"] == 5 * 12 and not passes["reference"]


@pytest.mark.parametrize("reference", ["causal", "remask"])
def test_the_copulas_cache_changes_nothing(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ar = model_and_ar()
    way = Dcd(ar, 3, reference=reference)  # type: ignore[arg-type]
    fast, passes = write(model, PROMPTS, 12, way, seed=5)
    monkeypatch.setattr(copula.Copula, "keep", lambda self, *_: self.known.zero_())  # read all anew
    slow, again = write(model, PROMPTS, 12, way, seed=5)
    assert fast.tolist() == slow.tolist() and passes == again
    assert passes["reference"] <= 2 * passes["draw"]


def test_a_causal_mask_hides_what_stands_to_the_right() -> None:
    model, _ = model_and_ar()
    with torch.inference_mode():
        blocks = Blocks(model, PROMPTS, 4)
        rows, ids = torch.arange(5), torch.randint(0, 28, (5, 4))
        masked = torch.tensor([False, True, True, False]).expand(5, 4)
        other = ids.clone()
        other[:, 3] = (ids[:, 3] + 1) % 28
        with blocks.looking_left():
            seen, hidden = (blocks.logp(rows, x, masked)[:, :3] for x in (ids, other))
        assert seen.equal(hidden)
        assert not blocks.logp(rows, ids, masked)[:, :3].allclose(blocks.logp(rows, other, masked)[:, :3])


def test_ways_have_names_and_results_a_row_each() -> None:
    assert len({rivals.label(way) for way in rivals.WAYS}) == len(rivals.WAYS)
    found = json.loads((FOLDER / "rivals.json").read_text(encoding="utf-8"))
    rows = rivals.rows_of(found)
    assert len(rows) == len(found) and {len(row) for row in rows} == {len(rivals.HEAD)}


def test_passes_are_counted_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_ones = dict(zip(("bd3lm", "ar"), model_and_ar(), strict=True))
    monkeypatch.setattr(rivals, "model_of", tiny_ones.__getitem__)
    monkeypatch.setattr(rivals, "NEW", 12)
    facts, texts = rivals.measured("bd3lm dcd-left 2", PROMPTS, 2)
    assert facts["passes"] == {"draw": 5 * 6, "reference": 5 * 6, "copula": 5 * 12}
    assert facts["tokens_per_own_pass"] == 1 and facts["copula_passes_per_token"] == 1
    assert texts.shape == (5, 12)


@pytest.fixture
def seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Of the weights of the models that `rivals.main` loads, all of them tiny."""
    of = {"ar": 0, "bd3lm": 2}

    def load(name: str, *_: Any) -> Any:
        return tiny(name, vocab=30, context=32, seed=of[name])

    for module, name, value in ((rivals, "load", load), (rivals, "NEW", 12), (edge_texts, "PROMPT", 8)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(rivals, "PROMPT", 8)
    words = [f"w{number}" for number in range(28)]
    (tmp_path / "text.txt").write_text(" ".join(words * 300), encoding="utf-8")
    prepare(str(tmp_path / "text.txt"), word_level(words), tmp_path / "cache")
    return of


def run_rivals(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[dict[str, Any]]:
    """Rows of the file after `rivals.main`, started in a process of its own as it were."""
    rivals.model_of.cache_clear()
    rivals.weights_of.cache_clear()
    (shards,) = (folder / "cache").iterdir()
    command = ["--valid", str(shards), "--out", str(folder / "rivals.json"), "--reader", "none"]
    monkeypatch.setattr(sys, "argv", ["rivals", *command, *words])
    rivals.main()
    return json.loads((folder / "rivals.json").read_text(encoding="utf-8"))


def test_a_file_goes_on_with_the_same_models_and_prompts_only(
    seeds: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = ("--texts", "4", "--batch-size", "2")
    (first,) = run_rivals(tmp_path, monkeypatch, *texts, "--ways", "bd3lm random 4")
    assert first["weights"].keys() == {"bd3lm", "ar"} and len(set(first["weights"].values())) == 2
    rows = run_rivals(tmp_path, monkeypatch, *texts, "--ways", "bd3lm random 4", "bd3lm dcd 2")
    assert rows[0] == first and [row["way"] for row in rows] == ["bd3lm random 4", "bd3lm dcd 2"]
    before = (tmp_path / "rivals.json").read_bytes()

    def refused(*words: str) -> str:
        with pytest.raises(SystemExit, match="2"):
            run_rivals(tmp_path, monkeypatch, *words)
        assert (tmp_path / "rivals.json").read_bytes() == before
        return capsys.readouterr().err

    assert "(batch 2, prompts " in refused("--texts", "3", "--batch-size", "3", "--ways", "bd3lm even 2")
    seeds["bd3lm"] = 1
    assert "(weights of bd3lm)" in refused(*texts, "--ways", "bd3lm even 2")
    assert len(run_rivals(tmp_path, monkeypatch, *texts, "--ways", "ar ar 1")) == 3  # no other weights in it


def test_rows_from_before_there_were_weights_are_kept(
    seeds: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("--texts", "4", "--ways", "bd3lm random 4", "ar ar 1")
    rows = run_rivals(tmp_path, monkeypatch, *command)
    old = [{key: row[key] for key in row.keys() - {"weights", "prompts", "batch"}} for row in rows]
    (tmp_path / "rivals.json").write_text(json.dumps(old), encoding="utf-8")
    assert run_rivals(tmp_path, monkeypatch, *command) == old
    assert len(run_rivals(tmp_path, monkeypatch, *command, "bd3lm even 2")) == 3
