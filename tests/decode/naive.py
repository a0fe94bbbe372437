"""Generation spelled out: one row, no cache, whole forward passes, Python loops, one random number at a time.

The twin of `generate`, and the exact law of a block's text by enumeration. Slow and meant to be read.
N block size, K candidates, V vocabulary.
"""

import copy
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from dadlm import DecodeSettings, Model, counter
from dadlm.model import Context, attention_dense

Ids = list[int | None]  # None: masked


@dataclass
class Graph:
    """What the model says of a block, as lists."""

    logits: list[list[torch.Tensor]]
    """[N][K] of [V]; an anchor has one node, whose logits mean nothing."""
    transition: list[list[list[float]]]
    """[N][K of the group before][K]: probabilities."""


@dataclass
class Text:
    tokens: list[int]
    forward_passes: int
    cache_passes: int


class Naive:
    """A model read the long way round: dense attention, nothing packed, nothing kept."""

    def __init__(self, model: Model) -> None:
        self.model = copy.deepcopy(model)
        self.model.backbone.attend_nodes = attention_dense.attend_nodes
        self.config = model.config

    @torch.inference_mode()
    def graph(self, before: list[int], ids: Ids) -> Graph:
        """Of a block `ids` after the text `before`."""
        if self.config.family == "ar":
            return self._single(self.model.read(torch.tensor([before]))[0, -1:], ids)
        masked = torch.tensor([[id_ is None for id_ in ids]])
        known = torch.tensor([[0 if id_ is None else id_ for id_ in ids]])
        if self.config.family == "mdlm":
            return self._single(self.model.read(known.masked_fill(masked, self.config.mask_id))[0], ids)
        context = None
        if before:
            context = Context()
            self.model.read(torch.tensor([before]), context)
        first = torch.tensor([[len(before)]])
        denoised = self.model.denoise(known[:, None], masked[:, None], first, context, packed=False)
        nodes = denoised.nodes
        hidden = nodes.groups(nodes.to_slots(denoised.hidden))[0, 0]
        transition = self.model.transition_logp(denoised)[0, 0].exp()
        count = [self.config.nodes_per_mask if id_ is None else 1 for id_ in ids]
        return Graph(
            [[self.model.head.logits(hidden[i, k], k) for k in range(n)] for i, n in enumerate(count)],
            [
                transition[i, : count[i - 1] if i else 1, : count[i]].tolist()  # the start node is one
                for i in range(len(ids))
            ],
        )

    def _single(self, hidden: torch.Tensor, ids: Ids) -> Graph:
        return Graph([[self.model.head.logits(h)] for h in hidden], [[[1.0]] for _ in ids])

    def complete(self, prompt: list[int], seed: int, settings: DecodeSettings, max_new_tokens: int) -> Text:
        """The text that `generate` must give for this row."""
        config = self.config
        text = list(prompt) or [config.eot_id]
        start, end = len(text), len(text) + max_new_tokens
        size = end if config.family == "mdlm" else config.block
        default_steps = max_new_tokens if config.family == "mdlm" else size
        passes = written = 0
        while True:
            first = len(text) // size * size
            ids: Ids = text[first:] + [None] * (size - (len(text) - first))
            step = 0
            known = max(0, start - first)  # of the prompt, whose end-of-text ends nothing
            while None in ids[: end - first] and not self._has_ended(ids[known:]):
                passes += 1
                draw = Draw(seed, first // size, step)
                ids, step = self.step(text[:first], ids, draw, settings, settings.steps or default_steps)
                if settings.padded:
                    ids = self._padded(ids, known)
            # What lies behind the end of the text may be open still.
            text = text[:first] + [config.eot_id if id_ is None else id_ for id_ in ids]
            new = text[start:end]
            end_at = next((i for i, id_ in enumerate(new) if id_ in self.model.end_ids), None)
            if end_at is not None:
                return Text(new[: end_at + 1], passes, written)
            if len(text) >= end:
                return Text(new, passes, written)
            written += config.family in ("bd3lm", "dadlm")

    def _has_ended(self, written: Ids) -> bool:
        """Whether all is known up to an end-of-text, or the end of a turn."""
        for id_ in written:
            if id_ is None or id_ in self.model.end_ids:
                return id_ is not None
        return False

    def step(
        self, before: list[int], ids: Ids, draw: "Draw", settings: DecodeSettings, steps: int
    ) -> tuple[Ids, int]:
        """One forward pass: the block after it and the next step's number."""
        graph, now = self.graph(before, ids), draw
        masked = [i for i, id_ in enumerate(ids) if id_ is None]
        filled = set() if settings.infill is None else gaps(ids, *settings.infill)
        kept = set(filled)
        if settings.sampler == "confidence":
            path, token = chosen(graph, ids, set(masked), now, settings)
            score = {i: confidence(graph, path, token, i, settings.transition_weight) for i in masked}
            kept |= {i for i in masked if score[i] >= settings.threshold}
            ends = [i for i in masked if settings.padded and token[i] == self.config.eot_id]
            others = [i for i in masked if i not in ends]
            kept.add(max(others, key=score.__getitem__) if others else ends[0])
        elif settings.sampler == "entropy":
            path, token = chosen(graph, ids, set(masked), now, settings)
            ends = [i for i in masked if settings.padded and token[i] == self.config.eot_id]
            kept = within_bound({i: entropy(graph.logits[i][path[i]]) for i in masked}, kept, ends, settings)
        elif settings.sampler == "first-hitting":
            left = {i: draw(counter.REVEAL, i) for i in masked if i not in filled}
            kept |= {max(left, key=left.__getitem__)} if left else set()
            _, token = chosen(graph, ids, kept, now, settings)
        else:
            while True:
                if settings.sampler == "dilated":
                    offsets = sorted(range(steps), key=lambda offset: f"{offset:020b}"[::-1])
                    kept |= {i for i in masked if offsets.index(i % steps) <= draw.step}
                else:
                    share = 1 / (steps - draw.step)
                    kept |= {i for i in masked if draw(counter.REMASK, i) < share}
                if kept:
                    break
                draw = Draw(draw.seed, draw.block, draw.step + 1)
            _, token = chosen(graph, ids, kept, now, settings)
        return [token[i] if i in kept else id_ for i, id_ in enumerate(ids)], draw.step + 1

    def _padded(self, ids: Ids, known: int) -> Ids:
        """All that is open after an end-of-text which was written is end-of-text as well."""
        eot = self.config.eot_id
        return [eot if id_ is None and eot in ids[known:i] else id_ for i, id_ in enumerate(ids)]


def chosen(
    graph: Graph, ids: Ids, wanted: set[int], draw: "Draw", settings: DecodeSettings
) -> tuple[list[int], list[int]]:
    """A path and a token for each of its nodes, to be read where wanted."""
    if settings.path != "sample":
        path = best_path(graph, ids) if settings.path == "viterbi" else path_ahead(graph, ids)
        return path, [int(row[k].argmax()) for row, k in zip(graph.logits, path, strict=True)]
    p = [[emission(logits, settings) for logits in nodes] for nodes in graph.logits]
    weighted = list(paths(graph))
    if by_position(graph, settings):
        weighted, p = inside(graph, wanted, settings)
    path = []
    for i, nodes in enumerate(graph.logits):
        on_the_way = [(one, w) for one, w in weighted if list(one[:i]) == path]
        chances = [sum(w for one, w in on_the_way if one[i] == k) for k in range(len(nodes))]
        path.append(inverse_cdf(chances, draw(counter.PATH, i)))
    return path, [inverse_cdf(p[i][k], draw(counter.TOKEN, i)) for i, k in enumerate(path)]


def by_position(graph: Graph, settings: DecodeSettings) -> bool:
    return settings.of_position and max(map(len, graph.logits)) > 1


def inside(
    graph: Graph, wanted: set[int], settings: DecodeSettings
) -> tuple[list[tuple[tuple[int, ...], float]], list[list[list[float]]]]:
    """Weights of all paths, and probabilities of the tokens of all nodes, given that wanted tokens lie in the
    nuclei of their positions: by enumeration of paths."""
    whole = [
        [(x.double() / settings.temperature).softmax(-1).tolist() for x in nodes] for nodes in graph.logits
    ]
    p = [[list(one) for one in nodes] for nodes in whole]
    weight = dict(paths(graph))
    for i in wanted:
        marginal = [0.0] * len(whole[i][0])
        for path, chance in paths(graph):
            marginal = [m + chance * x for m, x in zip(marginal, whole[i][path[i]], strict=True)]
        nucleus = standard_nucleus(marginal, settings.top_p)
        for k, one in enumerate(whole[i]):
            p[i][k] = [x if id_ in nucleus else 0.0 for id_, x in enumerate(one)]
        weight = {path: w * sum(p[i][path[i]]) for path, w in weight.items()}
    return list(weight.items()), p


@dataclass(frozen=True)
class Draw:
    """The random numbers of one step, one at a time."""

    seed: int
    block: int
    step: int

    def __call__(self, purpose: int, position: int) -> float:
        return float(counter.uniform(self.seed, self.block, self.step, position, purpose))


def emission(logits: torch.Tensor, settings: DecodeSettings) -> list[float]:
    """Probabilities of a node's tokens after temperature and the (standard) nucleus, normalised."""
    if settings.temperature == 0:
        return [float(id_ == int(logits.argmax())) for id_ in range(len(logits))]
    p = (logits.double() / settings.temperature).softmax(-1).tolist()
    if settings.top_p < 1:
        inside = standard_nucleus(p, settings.top_p)
        p = [x if id_ in inside else 0.0 for id_, x in enumerate(p)]
    total = sum(p)
    return [x / total for x in p]


def standard_nucleus(p: list[float], top_p: float) -> set[int]:
    """The smallest set whose mass reaches top_p, most probable first, lowest id first among equals."""
    inside: set[int] = set()
    mass = 0.0
    for id_ in sorted(range(len(p)), key=lambda id_: (-p[id_], id_)):
        if mass >= top_p:
            break
        inside.add(id_)
        mass += p[id_]
    return inside


def inverse_cdf(p: list[float], u: float) -> int:
    target, total = u * sum(p), 0.0
    for index, x in enumerate(p):
        total += x
        if target < total:
            return index
    raise AssertionError("a uniform number of one")


def paths(graph: Graph) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every path with its probability under the transitions."""
    for path in itertools.product(*(range(len(nodes)) for nodes in graph.logits)):
        p, node = 1.0, 0
        for rows, k in zip(graph.transition, path, strict=True):
            p, node = p * rows[node][k], k
        yield path, p


def best_path(graph: Graph, ids: Ids) -> list[int]:
    """Viterbi by enumeration: the path whose transitions and best tokens are most probable together."""

    def score(path: tuple[int, ...], p: float) -> float:
        for i, k in enumerate(path):
            if ids[i] is None:
                p *= float(graph.logits[i][k].double().softmax(-1).max())
        return p

    return list(max(paths(graph), key=lambda pair: score(*pair))[0])


def path_ahead(graph: Graph, ids: Ids) -> list[int]:
    """From each node to the one whose transition and best token are most probable together."""
    path = [0]
    for i, nodes in enumerate(graph.logits):
        score = [
            graph.transition[i][path[-1]][k]
            * (float(logits.double().softmax(-1).max()) if ids[i] is None else 1.0)
            for k, logits in enumerate(nodes)
        ]
        path.append(score.index(max(score)))
    return path[1:]


def confidence(graph: Graph, path: list[int], token: list[int], i: int, weight: float) -> float:
    """The paper's composite score of position i; one node per position leaves the emission alone."""
    emitted = float(graph.logits[i][path[i]].double().softmax(-1)[token[i]])
    if max(map(len, graph.logits)) == 1:
        return emitted
    incoming = graph.transition[i][path[i - 1] if i else 0][path[i]]
    outgoing = graph.transition[i + 1][path[i]][path[i + 1]] if i + 1 < len(path) else 1.0
    return (1 - weight) * emitted + weight * (incoming + outgoing) / 2


def entropy(logits: torch.Tensor) -> float:
    return -sum(p * math.log(p) for p in logits.double().softmax(-1).tolist() if p > 0)


def within_bound(
    entropies: dict[int, float], kept: set[int], ends: list[int], settings: DecodeSettings
) -> set[int]:
    """What is kept and, least open first, as much as the sum less the largest entropy allows; of texts that
    are padded the first is not an end, if it can be."""
    order = sorted(entropies, key=lambda i: (entropies[i], i))
    first = next((i for i in order if i not in ends), min(ends, default=None))
    for i in sorted(order, key=lambda i: i != first):
        spent = [entropies[j] for j in kept | {i}]
        if i not in kept and kept and sum(spent) - max(spent) > settings.bound:
            break
        kept = kept | {i}
    return kept


def gaps(ids: Ids, longest: int, ratio: float) -> set[int]:
    """Positions that infilling decides: short runs of masks with a known token, or the left edge, beside."""
    if sum(id_ is not None for id_ in ids) / len(ids) < ratio:
        return set()
    filled: set[int] = set()
    run: list[int] = []
    for i, id_ in enumerate(ids):
        if id_ is None:
            run.append(i)
        else:
            filled |= set(run) if len(run) <= longest else set()
            run = []
    return filled  # a run that reaches the right edge is no gap


class Law:
    """The exact distribution of a block's text: every path, token and remasking by its probability."""

    def __init__(self, naive: Naive, before: list[int], settings: DecodeSettings, steps: int) -> None:
        self.naive, self.before, self.settings, self.steps = naive, before, settings, steps
        self._tokens: dict[tuple, dict[tuple[int, ...], float]] = {}

    def of(self, ids: Ids) -> dict[tuple[int, ...], float]:
        """Probability of each completed block."""
        law: dict[tuple[int, ...], float] = defaultdict(float)
        states = {tuple(ids): 1.0}
        for step in itertools.count():
            after: dict[tuple, float] = defaultdict(float)
            for state, p in states.items():
                if None not in state:
                    law[state] += p
                    continue
                for kept, q in self._kept(list(state), step):
                    for tokens, r in self._joint(state, frozenset(kept)).items():
                        ids_after = tuple(tokens[i] if i in kept else id_ for i, id_ in enumerate(state))
                        after[ids_after] += p * q * r
            if not after:
                return dict(law)
            states = after
        raise AssertionError

    def _joint(self, state: tuple, kept: frozenset[int]) -> dict[tuple[int, ...], float]:
        """Of the tokens of all positions, masked ones drawn along a path, known ones as they are."""
        if (state, kept) not in self._tokens:
            graph = self.naive.graph(self.before, list(state))
            p = [[emission(logits, self.settings) for logits in nodes] for nodes in graph.logits]
            weighted = list(paths(graph))
            if by_position(graph, self.settings):
                weighted, p = inside(graph, set(kept), self.settings)
            joint: dict[tuple[int, ...], float] = defaultdict(float)
            total = sum(w for _, w in weighted)
            for path, chance in weighted:
                choices = []
                for i, (k, id_) in enumerate(zip(path, state, strict=True)):
                    mass = sum(p[i][k])
                    drawn = [(t, x / mass) for t, x in enumerate(p[i][k]) if x > 0]
                    choices.append(drawn if id_ is None else [(id_, 1.0)])
                for tokens in itertools.product(*choices):
                    x = chance / total
                    for _, q in tokens:
                        x *= q
                    joint[tuple(t for t, _ in tokens)] += x
            self._tokens[state, kept] = joint
        return self._tokens[state, kept]

    def _kept(self, ids: Ids, step: int) -> Iterator[tuple[set[int], float]]:
        """Sets of positions that are decided at a step, with their probability."""
        filled = set() if self.settings.infill is None else gaps(ids, *self.settings.infill)
        left = [i for i, id_ in enumerate(ids) if id_ is None and i not in filled]
        if self.settings.sampler == "first-hitting":
            yield from (({i} | filled, 1 / len(left)) for i in left)
            if not left:
                yield filled, 1.0
            return
        share = 1 / (self.steps - step)
        for choice in itertools.product((False, True), repeat=len(left)):
            p = 1.0
            for chosen in choice:
                p *= share if chosen else 1 - share
            if p > 0:
                yield {i for i, chosen in zip(left, choice, strict=True) if chosen} | filled, p
