"""POST /v1/chat/completions: a conversation becomes a prompt, and the completion its next message."""

from typing import Any

from dadlm.errors import DataError
from dadlm.model import Model
from dadlm.serve.chat_schemas import ChatBody
from dadlm.serve.refusals import Refusal
from dadlm.serve.routes import Choice, Completion, request_options
from dadlm.serve.settings import ServeSettings
from dadlm.tokens.chat import ANSWER_TOKENS, Message

NO_CHAT = (
    "there is no chat here: these are base models without a chat template; "
    "POST /v1/completions with a prompt, which they continue (dadlm serve --model smollm2 can chat)"
)


class ChatCompletion(Completion):
    """n answers to a conversation; answer i has the seed that row i of `dadlm.generate` would have."""

    kind, prefix, prompt_param = "chat.completion", "chatcmpl", "messages"

    def __init__(self, name: str, model: Model, body: ChatBody, limits: ServeSettings) -> None:
        self.begin(name, model, body, limits, 1)
        wanted = body.max_completion_tokens or body.max_tokens
        asked = "max_completion_tokens" if body.max_completion_tokens else "max_tokens"
        ids = self.fitting(_encoded(name, model, body), wanted, asked)
        most = wanted or min(ANSWER_TOKENS, model.config.context - len(ids))
        self.ask([ids], request_options(model, body, limits, most))

    @property
    def chunk_head(self) -> dict[str, Any]:
        return self.head | {"object": "chat.completion.chunk"}

    def first_chunks(self) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [self._delta(index, delta, None) for index in range(len(self.choices))]

    def choice(self, index: int, one: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": one.text, "refusal": None}
        reason = one.end and one.end.reason
        return {"index": index, "message": message, "logprobs": None, "finish_reason": reason}

    def chunk(self, index: int, text: str = "", logprobs=None, reason: str | None = None, **more: Any):
        return self._delta(index, {"content": text} if text else {}, reason) | more

    def _delta(self, index: int, delta: dict[str, str], reason: str | None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self.chunk_head | {"choices": [choice]}


def _encoded(name: str, model: Model, body: ChatBody) -> list[int]:
    """The conversation as ids, up to where the answer begins."""
    tokenizer = model.tokenizer
    if tokenizer is None or tokenizer.chat is None:
        message = f"{name} is a base model without a chat template: POST /v1/completions with a prompt"
        raise Refusal(404, message, param="model", code="chat_not_supported")
    messages: list[Message] = [
        {"role": "system" if one.role == "developer" else one.role, "content": one.text}
        for one in body.messages
    ]
    try:
        return tokenizer.encode_chat(messages)
    except DataError as error:  # including the template's own refusals
        raise Refusal(400, f"messages: {error}", param="messages") from error
