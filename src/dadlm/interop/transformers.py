"""Our models as classes of `transformers`; importing this registers them with AutoConfig and AutoModel."""

import dataclasses
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm.decode import generate
from dadlm.decode.generate import completions, decode_steps
from dadlm.errors import ConfigError
from dadlm.interop.hub import CARD, card_of
from dadlm.interop.likelihood import position_logp
from dadlm.model import Model, ModelConfig, in_mode
from dadlm.model.files import write_json
from dadlm.model.pretrained import BASE

try:
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        GenerationConfig,
        GenerationMixin,
        PretrainedConfig,
        PreTrainedModel,
    )
    from transformers.generation.streamers import BaseStreamer
    from transformers.modeling_outputs import MaskedLMOutput
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from dadlm.interop.generation import Asked, default_generation, read_options, turn_end_of
except ImportError as error:
    raise ConfigError("this needs transformers: pip install 'dadlm[transformers]'") from error

REMOTE = "modeling_dadlm.py"
_REMOTE_CODE = '''"""Lets transformers load this folder; needs pip install 'dadlm[transformers]'."""

from dadlm.interop.transformers import DadlmConfig, DadlmForMaskedLM

__all__ = ["DadlmConfig", "DadlmForMaskedLM"]
'''
MASK = "<|mask|>"  # the mask's spelling for AutoTokenizer; our tokenizer.json has no mask
_AUTO = {cls.__name__: cls for cls in (AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM)}
_SHAPE = tuple(field.name for field in dataclasses.fields(ModelConfig))


class DadlmConfig(PretrainedConfig):
    """The fields of `ModelConfig`, under their own names."""

    model_type = "dadlm"
    attribute_map = {  # noqa: RUF012 (transformers' own way)
        "hidden_size": "width",
        "num_hidden_layers": "layers",
        "num_attention_heads": "heads",
        "max_position_embeddings": "context",
        "tie_word_embeddings": "tie_embedding",
        "eos_token_id": "eot_id",
        "pad_token_id": "eot_id",
    }

    def __init__(self, **fields: Any) -> None:
        if fields.pop("format", 1) != 1:
            raise ConfigError(
                "these weights have 8 bits, which transformers does not read: "
                "dadlm convert FOLDER --to transformers --out ANOTHER"
            )
        if BASE in fields:
            raise ConfigError(
                "these are adapters without their base, which transformers does not read: "
                "dadlm convert FOLDER --to transformers --out ANOTHER"
            )
        fields.pop("weights_sha256", None)  # of the loaded weights, not of those that will be saved
        for name, value in asdict(ModelConfig(**{k: fields.pop(k) for k in _SHAPE if k in fields})).items():
            setattr(self, name, value)
        self.turn_end_id = turn_end_of(fields.pop("turn_end_id", None), self.shape)
        modules = {"AutoConfig": "DadlmConfig"} | dict.fromkeys(_AUTO, "DadlmForMaskedLM")
        self.auto_map = {auto: f"{Path(REMOTE).stem}.{own}" for auto, own in modules.items()}
        super().__init__(**{name: value for name, value in fields.items() if name != "auto_map"})

    @property
    def shape(self) -> ModelConfig:
        return ModelConfig(**{name: getattr(self, name) for name in _SHAPE})

    def to_diff_dict(self) -> dict[str, Any]:
        """The content of config.json: complete, and nothing that dadlm would not know."""
        fields = super().to_diff_dict()
        kept = ("model_type", "architectures", "auto_map", "dtype", "transformers_version", "turn_end_id")
        return {"format": 1} | {k: fields[k] for k in kept if k in fields} | asdict(self.shape)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Does nothing: transformers would copy this file into every saved folder, in place of `REMOTE`."""


class DadlmForMaskedLM(PreTrainedModel, GenerationMixin):
    """A model of any family, with the decoder of dadlm behind `generate`."""

    config_class = DadlmConfig
    main_input_name = "input_ids"
    _tied_weights_keys = {"head.linear.weight": "backbone.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: DadlmConfig, core: Model | None = None) -> None:
        super().__init__(config)
        if core is None:  # without a tokenizer, which would know it
            core = Model(config.shape)
            core.turn_end_id = config.turn_end_id
        # Its parts are registered, not the model itself: so the weights keep their names in our folders.
        self.__dict__["core"] = core
        self.backbone, self.head, self.graph = core.backbone, core.head, core.graph
        self.generation_config = GenerationConfig(**default_generation(core))
        self.post_init()

    core: Model
    """The model as the rest of dadlm knows it."""

    @classmethod
    def of(cls, model: Model) -> "DadlmForMaskedLM":
        """Wrap a model for transformers; the weights are shared."""
        turn_end = next(iter(model.end_ids[1:]), None)
        return cls(DadlmConfig(**asdict(model.config), turn_end_id=turn_end), model)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        clean_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> MaskedLMOutput:
        """`logits` are the log-probabilities of `position_logp`; labels of -100 do not count in the loss."""
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ConfigError("forward takes rows of one length: give one row at a time, without padding")
        logp = position_logp(self.core, input_ids, clean_ids)
        loss = None
        if labels is not None:
            next_token = self.config.family == "ar"
            said, wanted = (logp[:, :-1], labels[:, 1:]) if next_token else (logp, labels)
            loss = F.nll_loss(said.flatten(0, 1), wanted.flatten())
        return MaskedLMOutput(loss=loss, logits=logp)  # type: ignore[arg-type]

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        streamer: BaseStreamer | None = None,
        seed: int | list[int] | None = None,
        **options: Any,
    ) -> Tensor:
        """The rows of input_ids [B, L] with their completions, padded with end-of-text.

        Takes the options of transformers that have a meaning here, and all of `dadlm.generate`. Without a
        seed, one is drawn from torch's generator, which `transformers.set_seed` sets.
        """
        ids = inputs if input_ids is None else input_ids
        if ids is None:
            ids = torch.zeros(1, 0, dtype=torch.int64, device=self.device)
        real = torch.ones_like(ids) if attention_mask is None else attention_mask
        prompts = [row[there.bool()].tolist() for row, there in zip(ids, real, strict=True)]
        given = {} if generation_config is None else generation_config.to_diff_dict()
        asked = read_options(
            self.generation_config.to_diff_dict(),
            given | options,
            ids.shape[1],
            max(map(len, prompts)),
            self.core,
        )
        ids = ids.repeat_interleave(asked.copies, 0)
        prompts = [prompt for prompt in prompts for _ in range(asked.copies)]
        seed = int(torch.randint(2**31, ())) if seed is None else seed
        if streamer is None:
            written = generate(
                self.core, prompts, seed=seed, cache=asked.cache, settings=asked.settings
            ).tokens
        else:
            written = self._stream(prompts, asked, seed, streamer)
        longest = max(map(len, written))
        rows = [row + [asked.pad_id] * (longest - len(row)) for row in written]
        return torch.cat([ids, torch.tensor(rows, device=ids.device)], 1)

    def _stream(
        self, prompts: list[list[int]], asked: Asked, seed: int | list[int], streamer: BaseStreamer
    ) -> list[list[int]]:
        """Hand out each block as soon as it is decided."""
        if len(prompts) > 1:
            raise ConfigError(f"a streamer shows one text, and {len(prompts)} were asked for")
        model = in_mode(self.core, asked.settings.mode)
        rows = completions(model, prompts, asked.settings, seed)
        streamer.put(torch.tensor(prompts))
        for result in decode_steps(model, rows):
            for new in result.committed:
                streamer.put(torch.tensor([new.row.ids[position] for position in new.positions]))
        streamer.end()
        return [row.tokens for row in rows]

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As in transformers, plus the few lines of code that let it load the folder again."""
        super().save_pretrained(save_directory, *args, **kwargs)
        (Path(save_directory) / REMOTE).write_text(_REMOTE_CODE, encoding="utf-8")

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.backbone.embedding

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Does nothing: `Model` has initialised them."""

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """Does nothing; see `DadlmConfig`."""


def write_transformers(folder: Path, model: Model) -> None:
    """Write a model into an existing folder, with a card that says what the model itself can tell."""
    DadlmForMaskedLM.of(model).save_pretrained(folder)
    if (tokenizer := model.tokenizer) is not None:
        tokenizer.save(folder)
        mask = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
        mask |= {"content": MASK, "special": True}
        eot = tokenizer.token_text(tokenizer.eot_id)
        # What AutoTokenizer does not find in tokenizer.json.
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": model.config.context,
            "eos_token": eot,
            "pad_token": eot,
            "mask_token": MASK,
            "model_input_names": ["input_ids", "attention_mask"],
            "added_tokens_decoder": {str(tokenizer.mask_id): mask},
        }
        if (chat := tokenizer.chat) is not None:
            settings |= {"chat_template": chat.text, "eos_token": chat.eos_token or eot}
            settings |= {"bos_token": chat.bos_token} if chat.bos_token else {}
        write_json(folder / "tokenizer_config.json", settings)
    (folder / CARD).write_text(card_of(model), encoding="utf-8")


AutoConfig.register("dadlm", DadlmConfig, exist_ok=True)
for auto in _AUTO.values():
    auto.register(DadlmConfig, DadlmForMaskedLM, exist_ok=True)
# Without this, `pipeline` says that it does not know the model.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault("dadlm", DadlmForMaskedLM.__name__)
