"""What an answer cost, in OpenAI's words and in ours."""

from collections.abc import Sequence
from typing import Any

from dadlm.serve.request import Committed, Finished


def usage(ends: Sequence[Finished], each: int = 1) -> dict[str, int]:
    """Tokens of all texts; a prompt that `each` choices share counts once."""
    prompt = sum(end.prompt_tokens for end in ends[::each])
    completion = sum(end.completion_tokens for end in ends)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def progress(event: Committed, tokens: int) -> dict[str, int]:
    """What one text has cost up to a committed block."""
    return {"forward_passes": event.forward_passes, "tokens": tokens}


def cost(ends: Sequence[Finished], seeds: Sequence[int]) -> dict[str, Any]:
    """Passes, time and seeds; of several texts together and one by one."""
    each = [
        _cost([end]) | {"seed": seed, "seconds_queued": end.seconds_queued}
        for end, seed in zip(ends, seeds, strict=True)
    ]
    return each[0] if len(each) == 1 else _cost(ends) | {"choices": each}


def _cost(ends: Sequence[Finished]) -> dict[str, Any]:
    passes = sum(end.forward_passes for end in ends)
    return {
        "forward_passes": passes,
        "cache_passes": sum(end.cache_passes for end in ends),
        "tokens_per_forward": sum(end.completion_tokens for end in ends) / max(1, passes),
        "seconds": max(end.seconds_queued + end.seconds_running for end in ends),
    }
