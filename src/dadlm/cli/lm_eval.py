"""dadlm lm-eval: the command of lm-evaluation-harness, which knows our models then."""

from dadlm.interop.lm_eval import main


def run(words: list[str]) -> int:
    main(words)
    return 0
