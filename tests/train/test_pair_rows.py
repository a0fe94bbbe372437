"""Pairs as rows: what is known, what is learned, and which rows a step takes."""

from collections import Counter

import pytest
import torch
from tests.decode.tiny import tiny
from tests.train.runs import tokenizer

from dadlm.evaluate.documents import Documents
from dadlm.noise import NoiseConfig, draw_noise
from dadlm.objective import losses
from dadlm.train.batches import noise_of
from dadlm.train.pair_rows import PairRow, PairRows, encode_pairs, row_of

EOT = 30


def config_of(family: str, context: int = 32):
    return tiny(family, context=context, vocab=32, tokenizer=tokenizer()).config


@pytest.mark.parametrize(
    ("family", "prompt", "summary", "most", "ids"),
    [
        ("ar", [1, 2, EOT], [7, 8, 9], 10, [1, 2, EOT, 7, 8, 9, EOT]),
        ("bd3lm", [1, 2, EOT], [7, 8, 9], 10, [1, 2, EOT, 7, 8, 9, EOT, EOT]),  # to the end of the block of 4
        ("dadlm", [1, 2, EOT], [7, 8, 9], 10, [1, 2, EOT, 7, 8, 9, EOT, EOT]),
        ("mdlm", [1, 2, EOT], [7, 8, 9], 10, [1, 2, EOT, 7, 8, 9, *[EOT] * 7]),  # all that a summary may have
        # Too long: the end of a text that was cut is not its end, no end-of-text is learned there.
        ("ar", [1, EOT], [7, 8, 9], 2, [1, EOT, 7, 8]),
        ("bd3lm", [1, EOT], [7, 8, 9, 10, 11, 12], 3, [1, EOT, 7, 8, 9, 10, 11, 12]),
        ("bd3lm", [1, EOT], [7, 8, 9], 2, [1, EOT, 7, 8]),
        ("bd3lm", [1, EOT], [7, 8], 2, [1, EOT, 7, 8]),
    ],
)
def test_a_row_by_hand(family: str, prompt: list[int], summary: list[int], most: int, ids: list[int]) -> None:
    assert row_of(config_of(family), prompt, summary, most) == PairRow(ids, len(prompt))


def test_what_does_not_fit_is_counted() -> None:
    model = tiny("bd3lm", context=32, vocab=32, tokenizer=tokenizer())
    pairs = Documents(pairs=(("w1 w2 w3 w4", "w5"), ("w1", "w5 w6 w7"), ("w1 w2 w3 w4 w5", "w5 w6 w7 w8")))
    encoded = encode_pairs(model, pairs, 4, 2)
    assert (encoded.cut_documents, encoded.cut_summaries) == (2, 2)
    assert encoded.rows[0].ids == [1, 2, 3, EOT, 5, EOT, EOT, EOT]


def rows(count: int, longest: int) -> list[PairRow]:
    """Row i has its own number as first id; the lengths go up to `longest`, all of whole blocks."""
    lengths = [8 + 4 * (i * 7 % ((longest - 4) // 4)) for i in range(count)]
    return [PairRow([i] * length, length - 5) for i, length in enumerate(lengths)]


def test_every_row_comes_equally_often_and_always_in_its_own_bucket() -> None:
    one = PairRows(rows(90, 64), config_of("bd3lm", 64), 4)
    seen, shapes = Counter[int](), set()
    for step in range(450):
        batch = one.batch(step, seed=1)
        shapes.add(batch.ids.shape)
        seen.update(batch.ids[:, 0].tolist())
    assert shapes == {(4, 16), (4, 32), (4, 48), (4, 64)}
    assert sorted(seen) == list(range(90))
    assert min(seen.values()) >= 17 and max(seen.values()) <= 23  # 20 on average
    assert torch.equal(one.batch(77, seed=1).ids, PairRows(rows(90, 64), one.config, 4).batch(77, 1).ids)
    assert not torch.equal(one.batch(77, seed=1).ids, one.batch(77, seed=2).ids)


def test_few_rows_share_one_bucket() -> None:
    one = PairRows([PairRow([i] * 12 * i, 3) for i in (1, 2)], config_of("bd3lm", 64), 4)
    assert {tuple(one.batch(step, 0).ids.shape) for step in range(9)} == {(4, 32)}
    lonely = [*rows(20, 16), PairRow([99] * 60, 50)]  # one long row: the shorter ones join it
    one = PairRows(lonely, config_of("bd3lm", 64), 4)
    assert {tuple(one.batch(step, 0).ids.shape) for step in range(9)} == {(4, 64)}


def test_in_order_is_every_row_once() -> None:
    one = PairRows(rows(30, 64), config_of("bd3lm", 64), 4)
    firsts = [first for batch in one.in_order() for first in batch.ids[:, 0].tolist()]
    assert sorted(firsts) == list(range(30))


@pytest.mark.parametrize("family", ["ar", "mdlm", "bd3lm", "dadlm"])
def test_the_loss_is_of_the_summary_alone(family: str) -> None:
    """Neither the padding behind it nor the document's own likelihood counts; the document's words do."""
    model = tiny(family, context=32, vocab=32, tokenizer=tokenizer())
    row = row_of(model.config, [1, 2, 3, 4, 5, EOT], [7, 8, 9], 10)
    batch = next(PairRows([row, PairRow([*row.ids, *[3] * 20], 6)], model.config, 2).in_order())

    def loss(ids: torch.Tensor, learned: torch.Tensor) -> float:
        noise = None
        if family != "ar":
            how = {"seed": 1, "step": 2, "rows": torch.zeros(1, dtype=torch.int64), "batch_rows": 1}
            noise = noise_of(model.config, NoiseConfig(low=0.5), ids, learned, **how)
            assert noise is not None
            assert noise.masked.any() and not (noise.masked & ~learned).any()
        return float(losses(model, ids, noise, loss_mask=learned).train.detach().sum())

    ids, learned = batch.ids[:1], batch.loss_mask[:1]
    assert learned[0].nonzero().squeeze(1).tolist() == list(range(6, len(row.ids)))
    other_padding, other_document = ids.clone(), ids.clone()
    other_padding[0, len(row.ids) :] = 11
    other_document[0, 1] = 12
    assert loss(other_padding, learned) == pytest.approx(loss(ids, learned), rel=1e-5)
    assert abs(loss(other_document, learned) - loss(ids, learned)) > 1e-3
    if family == "ar":  # by the exact likelihood of the whole row
        whole = losses(model, ids, None).reconstruction[0]
        assert loss(ids, learned) == pytest.approx(float(whole[5:9].sum()), rel=1e-5)


@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_the_kept_blocks_carry_all_of_the_loss(family: str) -> None:
    """The same noise on all blocks of the row gives the same sum: those left out had no masks."""
    model = tiny(family, context=64, vocab=32, tokenizer=tokenizer())
    ids = torch.randint(0, 30, (3, 64), generator=torch.Generator().manual_seed(1))
    learned = torch.zeros(3, 64, dtype=torch.bool)
    learned[0, 9:20], learned[1, 30:44], learned[2, 61:] = True, True, True
    options = {"seed": 1, "step": 2, "rows": torch.arange(3), "batch_rows": 3, "length": 64, "block_size": 4}
    everywhere, few = (
        draw_noise(NoiseConfig(), **options),
        draw_noise(NoiseConfig(), maskable=learned, most_blocks=6, **options),
    )
    whole = type(few)(few.masked, everywhere.time, everywhere.weight)
    assert few.weight.shape == (3, 6)
    one, other = (losses(model, ids, noise).train.sum(1) for noise in (few, whole))
    assert torch.allclose(one, other, rtol=1e-4)
