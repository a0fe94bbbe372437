"""Write text: several prompts at once, the same model with other samplers, and one text step by step.

python examples/sample.py "The city of" --model dadlm
"""

import argparse

import dadlm

WAYS: dict[str, dadlm.DecodeOptions] = {
    "one token per step": {"sampler": "first-hitting"},
    "4 steps per block": {"sampler": "random", "steps": 4, "nucleus": "position"},
    "as many as are sure": {"sampler": "confidence", "threshold": 0.6},
    "the best path": {"sampler": "random", "steps": 4, "path": "viterbi"},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompts", nargs="*", default=["The city of", "In 1871"])
    parser.add_argument("--model", default="dadlm", help="a name that ships (dadlm, bd3lm) or a folder")
    parser.add_argument("--tokens", type=int, default=32, help="to write after each prompt")
    options = parser.parse_args()

    model = dadlm.load(options.model, device="auto")
    for name, way in WAYS.items():
        out = model.generate(options.prompts, seed=1, **(way | {"max_new_tokens": options.tokens}))
        print(f"\n{name}: {out.mean_tokens_per_forward:.2f} tokens per forward pass")
        for prompt, text in zip(options.prompts, out.texts, strict=True):
            print(" ", repr(prompt + text))

    print("\none block, step by step (· is still masked):")
    for event in model.stream(options.prompts[0], max_new_tokens=8, seed=1, sampler="random", steps=4):
        known = [a or f for a, f in zip(event.anchor, event.fixed, strict=True)]
        text = "".join(t if k else " ·" for t, k in zip(event.texts, known, strict=True))
        print(f"  step {event.step}: {text}")


if __name__ == "__main__":
    main()
