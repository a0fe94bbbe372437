"""transformers' `generate`, its pipeline and its streamers, on exported models of every family."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.decode.test_turn_end import PROMPTS, speaker
from tests.decode.tiny import FAMILIES, prompt_of, silence_eot, tiny
from tests.interop import published

import dadlm
from dadlm.errors import ConfigError
from dadlm.interop.convert import convert

pytest.importorskip("transformers")
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, TextStreamer, set_seed

from dadlm.interop.transformers import DadlmForMaskedLM

ROW = prompt_of(6)
IDS = torch.tensor([ROW])


@pytest.fixture(scope="module")
def model() -> DadlmForMaskedLM:
    return DadlmForMaskedLM.of(silence_eot(tiny("dadlm", tokenizer=published.tokenizer())))


def ours(model: DadlmForMaskedLM, rows: list[list[int]], **options) -> list[list[int]]:
    return [
        row + new for row, new in zip(rows, dadlm.generate(model.core, rows, **options).tokens, strict=True)
    ]


STRANGER = """
import contextlib, io, json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer, pipeline
folder = sys.argv[1]
assert not any(name.split(".")[0] == "dadlm" for name in sys.modules)
write = pipeline("text-generation", model=folder, trust_remote_code=True)
piped = write("w1 w2", max_new_tokens=5, seed=3)[0]["generated_text"]
batch = write(["w1 w2", "w3"], batch_size=2, seed=3, max_new_tokens=5, num_return_sequences=2)
whole = write("w1 w2", seed=5)[0]["generated_text"]
empty = write("", max_new_tokens=5, seed=5)[0]["generated_text"]
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder)
inputs = tokenizer("w1 w2", return_tensors="pt")
shown = io.StringIO()
with contextlib.redirect_stdout(shown):
    out = model.generate(**inputs, max_new_tokens=5, seed=3, do_sample=True, top_k=50, top_p=0.9,
        temperature=1.0, streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True))
again = tokenizer.decode(out[0, 2:], skip_special_tokens=True)
texts = [[one["generated_text"] for one in row] for row in batch]
print(json.dumps([piped, texts, whole, empty, shown.getvalue(), again]))
"""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_process_that_knows_only_transformers(family: str, tmp_path: Path) -> None:
    """Nothing is logged, not even that the pipeline does not know the class."""
    model = tiny(family, tokenizer=published.tokenizer())
    dadlm.save(model, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "folder", to="transformers")
    source = str(Path(dadlm.__file__).parents[1])
    quiet = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    env = {**os.environ, "PYTHONPATH": source, **quiet}
    words = [sys.executable, "-W", "error", "-c", STRANGER, str(tmp_path / "folder")]
    done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "not supported" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    piped, batch, whole, empty, shown, decoded = json.loads(done.stdout)
    new = dadlm.generate(model, "w1 w2", max_new_tokens=5, seed=3).texts[0]
    assert piped == "w1 w2" + new
    assert shown.strip() == decoded == new.strip()
    rows = dadlm.generate(model, ["w1 w2"] * 2 + ["w3"] * 2, max_new_tokens=5, seed=3).texts
    assert batch == [["w1 w2" + rows[0], "w1 w2" + rows[1]], ["w3" + rows[2], "w3" + rows[3]]]
    assert whole == "w1 w2" + dadlm.generate(model, "w1 w2", seed=5).texts[0], "as much as the context leaves"
    assert empty == dadlm.generate(model, "", max_new_tokens=5, seed=5).texts[0]


def test_options_of_transformers(model: DadlmForMaskedLM) -> None:
    def written(*config: GenerationConfig, **options) -> list[list[int]]:
        return model.generate(IDS, *config, seed=4, **options).tolist()

    common = {"seed": 4, "max_new_tokens": 8}
    assert written(max_new_tokens=8) == written(max_length=14) == ours(model, [ROW], **common)
    greedy = ours(model, [ROW], path="viterbi", **common)
    assert written(do_sample=False, max_new_tokens=8) == greedy
    assert written(do_sample=False, temperature=0.3, top_k=5, max_new_tokens=8) == greedy
    drawn = {"temperature": 0.8, "top_k": 3, "top_p": 0.7}
    assert written(do_sample=True, max_new_tokens=8, **drawn) == ours(model, [ROW], **drawn, **common)
    assert written(max_new_tokens=8, top_k=0, num_beams=1) == ours(model, [ROW], **common)
    config = GenerationConfig(do_sample=True, max_new_tokens=8, num_return_sequences=3, **drawn)
    assert written(config) == ours(model, [ROW] * 3, **drawn, **common)
    assert written(config, num_return_sequences=1) == ours(model, [ROW], **drawn, **common)
    few = {"sampler": "random", "steps": 2}
    assert written(max_new_tokens=8, use_cache=False, **few) == ours(model, [ROW], **few, **common)


def test_the_generation_config_of_the_model(tmp_path: Path) -> None:
    """It travels with the folder; its length is cut to what fits, one that was asked for is not."""
    DadlmForMaskedLM.of(tiny("bd3lm")).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.generation_config.max_new_tokens == 63 and loaded.generation_config.top_p == 0.9
    silence_eot(loaded.core)
    assert loaded.generate(IDS).shape == (1, 64)
    with pytest.raises(ConfigError, match="leaves 58"):
        loaded.generate(IDS, max_new_tokens=63)
    loaded.generation_config.max_new_tokens = 4
    assert loaded.generate(IDS).shape == (1, 10)


def test_the_seed_is_that_of_torch(model: DadlmForMaskedLM) -> None:
    texts = []
    for seed in (1, 1, 2):
        set_seed(seed)
        texts.append(model.generate(IDS, max_new_tokens=12).tolist())
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_streamer_sees_blocks_as_they_are_decided(family: str) -> None:
    model, pieces = DadlmForMaskedLM.of(silence_eot(tiny(family))), []

    class Streamer(TextStreamer):
        def __init__(self) -> None: ...

        def put(self, value: torch.Tensor) -> None:
            pieces.append(value.flatten().tolist())

        def end(self) -> None:
            pieces.append("end")

    rows = model.generate(IDS, max_new_tokens=40, seed=1, streamer=Streamer())
    assert pieces.pop() == "end" and pieces[0] == ROW
    assert [token for piece in pieces for token in piece] == rows[0].tolist()
    assert rows.tolist() == ours(model, [ROW], seed=1, max_new_tokens=40)
    assert len(pieces) > 2 or family == "mdlm", "not all at once"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 4}, 'num_beams is for decoding from left to right; path="viterbi"'),
        ({"repetition_penalty": 1.2}, "repetition_penalty .* a step here decides several"),
        ({"stopping_criteria": [len]}, "stopping_criteria .* a step here decides several"),
        ({"min_new_tokens": 3}, "min_new_tokens is an option of transformers' decoder"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate"),
        ({"eos_token_id": 3}, "end with token 28"),
        ({"num_return_sequences": 0}, "num_return_sequences must be"),
        ({"max_length": 6}, "max_length is 6, but the prompt has 6"),
        ({"topp": 0.3}, "topp; did you mean top_p"),
        ({"generation_config": GenerationConfig(num_beams=3)}, "num_beams"),
        ({"num_return_sequences": 2, "streamer": TextStreamer(None)}, "one text, and 2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_has_no_meaning_is_refused(model: DadlmForMaskedLM, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model.generate(IDS, **options)


@pytest.mark.parametrize("how", [{}, {"mode": "ar"}])
def test_texts_of_a_chat_end_with_the_turn(how: dict, tmp_path: Path) -> None:
    """In transformers as in dadlm; also of a folder without a tokenizer, which transformers has saved."""
    core = speaker("bd3lm", True, causal_context=True)
    eot, turn_end = core.end_ids
    dadlm.save(core, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "folder", to="transformers")
    AutoModelForCausalLM.from_pretrained(tmp_path / "folder").save_pretrained(tmp_path / "again")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert tokenizer.eos_token_id == turn_end and tokenizer.pad_token_id == eot
    how = {"max_new_tokens": 100, "temperature": 3.0, "top_p": 1.0, "seed": 10} | how
    inputs = tokenizer(PROMPTS * 4, return_tensors="pt", padding=True, padding_side="left")
    wanted = dadlm.generate(core, PROMPTS * 4, **how).tokens
    assert any(row[-1] == turn_end for row in wanted)
    for name in ("folder", "again"):
        said = json.loads((tmp_path / name / "generation_config.json").read_text())
        assert said["eos_token_id"] == [eot, turn_end] and said["pad_token_id"] == eot
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        for end in (
            {},
            *({"eos_token_id": end} for end in (eot, turn_end, [eot, turn_end], [turn_end, eot])),
        ):
            rows = model.generate(**inputs, **how, **end)[:, inputs.input_ids.shape[1] :].tolist()
            for row, want in zip(rows, wanted, strict=True):
                assert row == want + [eot] * (len(row) - len(want))
        for end in ([], 3, [eot, 3], [[eot]], "x"):
            with pytest.raises(ConfigError, match=f"end with token {eot} or {turn_end}; eos_token_id is"):
                model.generate(**inputs, eos_token_id=end)
    assert dadlm.load(tmp_path / "folder").end_ids == core.end_ids


@pytest.mark.parametrize("turn_end", ["x", -1, 263, 2.0, True, [3]])
def test_a_turn_that_ends_with_no_token_is_refused(turn_end: object, tmp_path: Path) -> None:
    DadlmForMaskedLM.of(speaker("ar", True)).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"turn_end_id": turn_end}))
    with pytest.raises(ConfigError, match="turn_end_id"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_the_tokenizer_gives_what_generate_takes(tmp_path: Path) -> None:
    dadlm.save(tiny("dadlm", tokenizer=published.tokenizer()), tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "folder", to="transformers")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "folder")
    inputs = tokenizer(["w1 w2", "w3"], return_tensors="pt", padding=True, padding_side="left")
    assert set(inputs) == {"input_ids", "attention_mask"}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "folder")
    assert model.generate(**inputs, max_new_tokens=1).shape == (2, 3)
