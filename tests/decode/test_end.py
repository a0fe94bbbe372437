"""Nothing is denoised behind the end of a text: the same texts as from whole blocks, in fewer passes."""

import pytest
import torch
from tests.decode.naive import Naive
from tests.decode.test_generate import SETTINGS
from tests.decode.tiny import FAMILIES, prompt_of, silence_eot, tiny
from tests.serve.company import alone, drain, truth_of

from dadlm import DecodeSettings, Model, generate, stream
from dadlm.decode import Generated, fill_gaps, step
from dadlm.decode.samplers import Block
from dadlm.decode.step import settle
from dadlm.serve import Request, Scheduler

WAYS = SETTINGS | {
    "paper": {"sampler": "confidence", "path": "viterbi", "threshold": 1.0},
    "padded": {"sampler": "confidence", "path": "lookahead", "threshold": 1.0, "padded": True},
    "paper, infilling": {"sampler": "confidence", "path": "viterbi", "threshold": 1.0, "infill": (2, 0.5)},
}
# Padded, what follows an end is decided before all that precedes it, and is another text's context.
OPEN = {name: options for name, options in WAYS.items() if not options.get("padded")}
every_settings = pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
COUNT = 8
BIAS = 2.0


def speaking(family: str, seed: int = 2) -> Model:
    """End-of-text is one of seven tokens, and a likely one: most texts end in some block."""
    model = tiny(family, block=8, vocab=8, seed=seed)
    bias = torch.zeros(8)
    bias[model.config.eot_id] = BIAS
    model.head.linear.bias = torch.nn.Parameter(bias)
    return model


def texts(model: Model, options: dict) -> Generated:
    """Prompts of every remainder, some with an end-of-text in the block where the completion begins."""
    prompts = [prompt_of(1 + i % 9, i, vocab=8) for i in range(COUNT)]
    prompts = [[*prompt, 6] if i % 3 == 0 else prompt for i, prompt in enumerate(prompts)]
    options = {"top_p": 1.0} | options
    return generate(model, prompts, max_new_tokens=21, seed=0, **options)


def to_the_end(patch: pytest.MonkeyPatch) -> None:
    """Denoise every block to its end, as if nothing were known of end-of-text."""
    patch.setattr(step, "settle", lambda _, ids, kept, *rest: (ids, kept))


@pytest.mark.parametrize("options", OPEN.values(), ids=OPEN)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_texts_are_the_same_in_fewer_passes(
    family: str, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, decides_few = 0, options.get("sampler") != "confidence" or options["threshold"] == 1.0
    for seed in (2, 3):
        model = speaking(family, seed)
        out = texts(model, options)
        with monkeypatch.context() as patch:
            to_the_end(patch)
            whole = texts(model, options)
        assert (out.tokens, out.texts, out.cache_passes) == (whole.tokens, whole.texts, whole.cache_passes)
        pairs = list(zip(out.forward_passes, whole.forward_passes, strict=True))
        assert all(few <= many for few, many in pairs)
        saved += sum(whole.forward_passes) - sum(out.forward_passes)
    assert saved > 0 or family == "ar" or not decides_few


@every_settings
@pytest.mark.parametrize("family", ["mdlm", "dadlm"])
def test_passes_are_those_of_plain_loops(family: str, options: dict) -> None:
    model = speaking(family)
    options = {"top_p": 1.0} | options
    naive, settings = Naive(model), DecodeSettings(**options)
    prompts = [prompt_of(3, 1, vocab=8), [1, 6], prompt_of(8, 3, vocab=8), [6]]
    out = generate(model, prompts, max_new_tokens=13, seed=5, **options)
    for row, prompt in enumerate(prompts):
        text = naive.complete(prompt, 5 + row, settings, 13)
        assert (out.tokens[row], out.forward_passes[row]) == (text.tokens, text.forward_passes)


@every_settings
@pytest.mark.parametrize("family", ["mdlm", "dadlm"])
def test_in_place_and_at_fixed_shapes_it_is_the_same(
    family: str, options: dict, request: pytest.FixtureRequest
) -> None:
    model = speaking(family)
    plain = texts(model, options)
    request.getfixturevalue("as_on_cuda")
    assert texts(model, options) == plain


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("family", ["mdlm", "bd3lm", "dadlm"])
def test_every_event_is_a_pass_and_the_last_one_ends_the_text(
    family: str, graphs: bool, request: pytest.FixtureRequest
) -> None:
    if graphs:  # the passes of a block are launched without asking whether all texts have ended
        request.getfixturevalue("as_on_cuda")
    model = speaking(family)
    for seed in range(8):
        out = generate(model, [[1, 2]], max_new_tokens=14, seed=seed, top_p=1.0)
        events = list(stream(model, [1, 2], max_new_tokens=14, seed=seed, top_p=1.0))
        assert len(events) == out.forward_passes[0]
        assert model.config.mask_id not in events[-1].ids, "what is behind the end is decided too"


@pytest.mark.parametrize("family", ["mdlm", "bd3lm", "dadlm"])
def test_in_mixed_company_each_row_ends_as_it_would_alone(family: str) -> None:
    """Completions of all ways to decode beside gaps, in one batch; passes are compared too."""
    model, ways = speaking(family), list(WAYS.values())
    asked = [
        Request(ids=(*prompt_of(i, i, vocab=8), 6), settings=DecodeSettings(max_new_tokens=13, **how), seed=i)
        for i, how in enumerate(ways)
    ]
    text, gaps = tuple(prompt_of(30, 4, vocab=8)), ((3, 11), (16, 14))
    asked += [
        Request(ids=text, gaps=gaps, settings=DecodeSettings(**how), seed=i) for i, how in enumerate(ways[:4])
    ]
    scheduler = Scheduler(model, max_rows=len(asked))
    jobs = [scheduler.submit(request) for request in asked]
    drain(scheduler)
    assert [truth_of(job) for job in jobs] == [alone(model, request) for request in asked]
    scheduler.shutdown(grace=0)


def test_by_hand() -> None:
    """end-of-text is 9; the prompt's own, and one with something open before it, end nothing."""
    ids = torch.tensor([[9, 1, 9, 5], [9, 1, 9, 5], [1, 9, 9, 5], [9, 1, 2, 9]])
    masked = torch.tensor([[0, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 0, 0]]).bool()
    ends = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]]).bool()
    number = torch.zeros(4, dtype=torch.int64)
    every, wanted = torch.ones_like(masked), torch.tensor([[1, 1, 1, 1]] * 4).bool()
    now = Block(ids, masked, number, number, number, torch.zeros_like(ids), number, every, wanted, ends)
    after, kept = settle(now, ids, torch.zeros_like(masked), (9,))
    assert after.tolist() == [[9, 1, 9, 9], ids[1].tolist(), [1, 9, 9, 9], ids[3].tolist()]
    assert kept.tolist() == [
        [False, False, False, True],
        [False] * 4,
        [False, False, True, True],
        [False] * 4,
    ]
    padded, _ = settle(now, ids, torch.zeros_like(masked), (9,), padded=torch.ones(4, 1).bool())
    assert padded.tolist() == [[9, 1, 9, 9], [9, 1, 9, 9], [1, 9, 9, 9], ids[3].tolist()]


@pytest.mark.parametrize("padded", [False, True])
def test_by_hand_with_turns(padded: bool) -> None:
    """The end of a turn is 8: a text is over there too, but what follows a late one is not known."""
    ids = torch.tensor([[8, 1, 8, 5], [8, 1, 8, 5], [9, 1, 9, 5]])
    masked = torch.tensor([[0, 0, 0, 1], [0, 1, 0, 1], [0, 1, 0, 1]]).bool()
    ends = torch.tensor([[0, 1, 1, 1]] * 3).bool()
    number, every = torch.zeros(3, dtype=torch.int64), torch.ones_like(masked)
    now = Block(ids, masked, number, number, number, torch.zeros_like(ids), number, every, every, ends)
    pad = torch.ones(3, 1).bool() if padded else None
    after, kept = settle(now, ids, torch.zeros_like(masked), (9, 8), pad)
    assert after.tolist() == [[8, 1, 8, 9], ids[1].tolist(), [9, 1, 9, 9 if padded else 5]]
    assert kept.tolist() == [[False] * 3 + [True], [False] * 4, [False] * 3 + [padded]]


@pytest.mark.parametrize("family", ["mdlm", "bd3lm", "dadlm"])
def test_padding_is_no_matter_of_gaps(family: str) -> None:
    """End-of-text ends nothing there, so none is late and nothing follows from one."""
    model, text, gaps = speaking(family), prompt_of(30, 4, vocab=8), [(3, 11), (16, 14)]
    for how in ({"sampler": "confidence", "threshold": 1.0}, {"sampler": "random", "steps": 3}, {}):
        for seed in range(6):
            whole = fill_gaps(model, text, gaps, seed=seed, top_p=1.0, **how)
            assert fill_gaps(model, text, gaps, seed=seed, top_p=1.0, padded=True, **how) == whole


@pytest.mark.parametrize("family", ["mdlm", "bd3lm", "dadlm"])
def test_gaps_are_filled_to_their_end(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """End-of-text in a gap is a token like any other."""
    model = speaking(family)
    text, gaps = prompt_of(30, 4, vocab=8), [(3, 11), (16, 14)]
    filled = [fill_gaps(model, text, gaps, seed=seed, top_p=1.0) for seed in range(3)]
    assert any(model.config.eot_id in gap[:-1] for one in filled for gap in one.gaps)
    to_the_end(monkeypatch)
    whole = [fill_gaps(model, text, gaps, seed=seed, top_p=1.0) for seed in range(3)]
    assert [one.tokens for one in whole] == [one.tokens for one in filled]


def test_a_row_ends_when_all_that_was_asked_for_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of its last block is only denoised while it may still be context for what was asked for."""
    model, text = silence_eot(tiny("bd3lm", block=8)), prompt_of(24)

    def passes() -> list[int]:
        cut = [
            generate(model, [[1] * 8], max_new_tokens=9, seed=seed).forward_passes[0] for seed in range(20)
        ]
        gap = [fill_gaps(model, text[:17], [(9, 3), (16, 1)], seed=seed).forward_passes for seed in range(20)]
        return cut + gap

    few = passes()
    to_the_end(monkeypatch)
    assert passes() == [16] * 20 + [3 + 8] * 20
    assert all(9 <= n <= 16 for n in few[:20]) and all(4 <= n <= 11 for n in few[20:])
    assert len(set(few[:20])) > 3 and sum(few[:20]) < 20 * 15
