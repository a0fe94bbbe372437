"""benchmarks/serving.py: what answers are compared with."""

from benchmarks.serving import Solo
from tests.decode.tiny import tiny

from dadlm import generate
from dadlm.decode.settings import SUITED_SAMPLER
from dadlm.tokens import word_level


def test_solo_texts_are_those_of_the_servers_defaults() -> None:
    model = tiny("bd3lm", tokenizer=word_level([f"w{number}" for number in range(28)]))
    asked = [{"prompt": "w1 w2 w3 w4", "seed": seed, "max_tokens": 12} for seed in range(3)]
    usual = {"sampler": SUITED_SAMPLER, "steps": 2}
    for one, text in zip(asked, Solo().run(model, asked).texts, strict=True):
        assert [text] == generate(model, one["prompt"], seed=one["seed"], max_new_tokens=12, **usual).texts
