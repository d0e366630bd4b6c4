"""The AR model: from a sentence and a size, or a picture and what to change, to the codes of the large grid.

Its preview is no small picture: the pipeline throws the preview away, every ratio of sides has another grid of about
256 cells, and most of the training would go into learning to draw in all of them. Its first cells are notes: which
shapes were named, which comes first in the picture, how they stand, how far aside, and the numbers that follow for
their boxes. What is read from the prompt is so learned one word at a time, apart from where in the picture it is drawn.
The rest is blank, a code that no picture has, so that it is easily ignored; in most batches most of it is left out,
which trains twice as fast, until late in the cooling. The cells of the large grid beside the shapes count down to the
next one; the first ones of an edit are notes, too (demo_model.marks).
"""

import random
from dataclasses import dataclass

import torch
from torch import nn
from transformers import GlmImageConfig, GlmImageForConditionalGeneration

from app.ar.prompt import decode_positions
from app.bench.world import CELL, COLOURS, boxes, forward
from app.domain.sizes import Size
from demo_model import samples
from demo_model.codebook import (
    BACK_OF,
    BLANK,
    CODES,
    FRONT_OF,
    KIND_OF,
    KINDS_OF_MARKS,
    NUMBER_OF,
    NUMBERS,
    PATTERN_OF,
    PATTERNS,
    POINTS,
    FactoredTable,
    encode,
    symbol,
)
from demo_model.marks import encode_edited, encode_marked, numbered
from demo_model.muon import Muon
from demo_model.samples import SIDES
from demo_model.sentences import sentence
from demo_model.tokenizer import END, START, ids, tokenizer
from demo_model.training import Figures, Stage

WIDTH, LAYERS, HEADS, KV_HEADS, INNER = 192, 4, 4, 2, 448
#: Tokens of a batch, about; at least and at most so many rows.
_BATCH, _LEAST, _MOST = 2048, 4, 32
#: Sides in cells of small pictures and of large ones, and parts of the batches that begin with a small and with a large
#: one, prompts and edits. Most edits are small: a batch then has more of them, and the hard thing is which shape is
#: meant. Of large pictures, the shapes are learned last.
_SMALL, _LARGE = SIDES[:5], SIDES[5:]
_SIZES, _EDIT_SIZES = (0.3, 0.3), (0.55, 0.1)
#: Part of the pictures with two shapes: less than of all samples, since the largest shape stands alone. Part of these
#: that are made to begin alike: the last thing that it confuses.
_PAIRS, _ALIKE = 0.55, 0.25
#: Part of the cooling after which the batches are as in `_AFTER`.
_LATE = 0.58
#: Cells of the other pictures of a batch beside those of its first, and the part of them that have its size.
_FEWER, _EQUAL = 0.6, 0.4
#: Numbers that sizes are said with: sides in cells, of previews too.
NUMBERS_IN_WORDS = range(4, 33)
#: Blank tokens of the preview that the other batches read; how much the loss of most blanks counts beside all others.
_KEPT, _BLANK = 12, 0.1


@dataclass(frozen=True, slots=True)
class Mix:
    """What batches are made of. Parts of them: edits, and among the others those that read the whole preview.

    Parts of the edits: two shapes, and changes of a shape rather than of the background. `ends`: both ends of every row
    of a preview count in full. `seen`: edits begin with what is seen and which shape changes.
    """

    edits: float
    whole: float
    pairs: float
    shapes: float
    ends: bool = False
    seen: bool = False


#: First what is quickly learned, then what is still wrong at the end: where a preview ends when it is read as in use,
#: and which of two shapes is meant.
_BEFORE = Mix(edits=0.4, whole=0.2, pairs=0.7, shapes=0.6)
_AFTER = Mix(edits=0.5, whole=1.0, pairs=0.8, shapes=0.75, ends=True, seen=True)


def config() -> GlmImageConfig:
    """Turns of the rotary positions: both axes have quick and slow ones, all short enough for pictures of 16 cells."""
    known = tokenizer()
    text = {
        "vocab_size": len(known),
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "pad_token_id": known.pad_token_id,
        "eos_token_id": END,
        "vision_vocab_size": CODES + 2,
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10.0,
            "mrope_section": [1, 3, 3, 1, 5, 5],
            "partial_rotary_factor": 0.75,
        },
    }
    vision = {"depth": 0, "num_heads": 2, "intermediate_size": 16, "patch_size": 16, "image_size": 16}
    numbers = POINTS * POINTS * 3
    return GlmImageConfig(
        text_config=text,
        vision_config={**vision, "hidden_size": numbers},
        vq_config={"embed_dim": numbers + 1, "num_embeddings": CODES, "latent_channels": numbers},
        image_token_id=known.convert_tokens_to_ids("<|image|>"),
        image_start_token_id=START,
        image_end_token_id=END,
    )


def scale(numbers: int) -> torch.Tensor:
    """Numbers as points on circles of several lengths, [numbers, 21]: "one less" is the same turn for all of them."""
    steps = torch.arange(numbers)[:, None] / torch.tensor([2.0, 3, 4, 6, 8, 12, 16, 24, 32, 64])
    return torch.cat([(2 * torch.pi * steps).cos(), (2 * torch.pi * steps).sin(), steps[:, -1:] * 2], 1)


class Embedding(nn.Module):
    """Codes by their parts, words from a table. Numbers begin as points of one scale, in words and in marks."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = FactoredTable(WIDTH, 0.3)
        self.kinds = nn.Parameter(torch.randn(KINDS_OF_MARKS + 1, WIDTH) * 0.3)
        known = scale(NUMBERS_IN_WORDS.stop) @ torch.randn(21, WIDTH) * 0.12
        self.numbers = nn.Parameter(torch.cat([torch.zeros(1, WIDTH), known[:NUMBERS]]))
        words = torch.randn(len(tokenizer()) - CODES, WIDTH) * 0.5
        for value in NUMBERS_IN_WORDS:
            words[ids(f"<sop>{value}")[1] - CODES] = known[value]
        self.words = nn.Parameter(words)

    def rows(self) -> torch.Tensor:
        return torch.cat([self.codes.rows() + self.kinds[KIND_OF] + self.numbers[NUMBER_OF], self.words])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        word = tokens >= CODES
        known = tokens.clamp(max=CODES - 1)
        lookup = nn.functional.embedding
        codes = self.codes(known) + lookup(KIND_OF[known], self.kinds) + lookup(NUMBER_OF[known], self.numbers)
        words = nn.functional.embedding((tokens - CODES).clamp(min=0), self.words)
        return torch.where(word[..., None], words, codes)


class Head(nn.Module):
    """The output head by parts. Its softmax is that of the whole table, computed without making the table."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Parameter(torch.randn(len(COLOURS) + 1, WIDTH) * 0.02)  # the last one is the blank's
        self.pattern = nn.Parameter(torch.randn(PATTERNS, WIDTH) * 0.02)
        self.front = nn.Parameter(torch.randn(len(COLOURS), WIDTH) * 0.02)
        self.back = nn.Parameter(torch.randn(len(COLOURS), WIDTH) * 0.02)
        self.kind = nn.Parameter(torch.randn(KINDS_OF_MARKS, WIDTH) * 0.02)
        self.number = nn.Parameter(scale(NUMBERS) @ torch.randn(21, WIDTH) * 0.01)
        self.marked = nn.Parameter(torch.randn(len(COLOURS), WIDTH) * 0.02)

    def rows(self) -> torch.Tensor:
        """[CODES + 2, WIDTH]; nothing for the start and the end, which are never drawn."""
        edges = slice(len(COLOURS), BLANK)
        made = self.pattern[PATTERN_OF[edges]] + self.front[FRONT_OF[edges]] + self.back[BACK_OF[edges]]
        marks = slice(BLANK + 1, None)
        counts = self.kind[KIND_OF[marks] - 1] + self.number[NUMBER_OF[marks] - 1] + self.marked[FRONT_OF[marks]]
        return torch.cat([self.plain[:-1], made, self.plain[-1:], counts, torch.zeros(2, WIDTH)])

    def loss(self, hidden: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Cross entropy by token; `hidden` [n, WIDTH], `codes` [n]."""
        plain, pattern = hidden @ self.plain.T, hidden @ self.pattern.T
        front, back = hidden @ self.front.T, hidden @ self.back.T
        kind, number, marked = hidden @ self.kind.T, hidden @ self.number.T, hidden @ self.marked.T
        pairs = (front[:, :, None] + back[:, None, :]).masked_fill(torch.eye(len(COLOURS), dtype=torch.bool), -1e9)
        edges = pattern.logsumexp(1) + pairs.flatten(1).logsumexp(1)
        marks = kind.logsumexp(1) + number.logsumexp(1) + marked.logsumexp(1)
        everything = torch.cat([plain, edges[:, None], marks[:, None]], 1).logsumexp(1)
        edge, one, two = (table[codes][:, None] for table in (PATTERN_OF, FRONT_OF, BACK_OF))
        mark, count = ((table[codes][:, None] - 1).clamp(min=0) for table in (KIND_OF, NUMBER_OF))
        as_edge = pattern.gather(1, edge.clamp(max=PATTERNS - 1)) + front.gather(1, one) + back.gather(1, two)
        as_mark = kind.gather(1, mark) + number.gather(1, count) + marked.gather(1, one)
        as_plain = plain.gather(1, one.where(codes[:, None] != BLANK, len(COLOURS)))
        said = torch.where(edge < PATTERNS, as_edge, torch.where(codes[:, None] > BLANK, as_mark, as_plain))
        return everything - said[:, 0]


class Network(nn.Module):
    """What is trained of the AR model: its language model with both tables in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.language = GlmImageForConditionalGeneration(config()).model.language_model
        self.language.embed_tokens = Embedding()
        self.head = Head()
        for layer in self.language.layers:  # small steps beside the embeddings, as in a network without these norms
            nn.init.constant_(layer.post_self_attn_layernorm.weight, 0.25)
            nn.init.constant_(layer.post_mlp_layernorm.weight, 0.25)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """`tokens` [rows, n], `positions` [3, rows, n]: hidden states [rows, n, WIDTH]. Pads stand behind: no mask."""
        embedded = self.language.embed_tokens(tokens)
        out = self.language(inputs_embeds=embedded, position_ids=positions, use_cache=False)
        hidden: torch.Tensor = out.last_hidden_state
        return hidden


@dataclass(frozen=True, slots=True)
class Row:
    """One training example: what is read, where it stands, and how much the last tokens count, those to be learned."""

    tokens: list[int]
    positions: torch.Tensor
    weights: list[float]


def notes(sample: samples.Sample) -> list[int]:
    """The codes that begin a preview: the shapes as they were named, as they come in the picture, how they stand, the
    shift; then the last column, the side of the boxes, the first one's top and left, and what is left between the two.

    The background stands for "no other" and "side by side".
    """
    drawing = sample.drawing
    plain = COLOURS.index(drawing.background)
    shown = forward(drawing)
    named, seen = ([symbol(shape, each.background) for shape in each.shapes] for each in (drawing, shown))
    colour = COLOURS.index(drawing.shapes[0].colour)
    none = [plain] * (2 - len(named))
    stacked = colour if drawing.relation in ("above", "below") else plain
    said = [*named, *none, *seen, *none, stacked]
    placed = boxes(shown, sample.columns, sample.rows, sample.shift)
    first, last = placed[0], placed[-1]
    between = max(last.top - first.top, last.left - first.left, first.side) - first.side
    numbers = (sample.shift + 1, sample.columns - 1, first.side, first.top, first.left, between)
    return [*said, *(numbered(value, plain) for value in numbers)]


def prompt_row(rng: random.Random, columns: int, rows: int, kept: int | None, *, ends: bool = False) -> Row:
    """A sentence, its preview (the notes and `kept` of the other tokens, or all), its large grid.

    The last row of the preview begins where the large grid would after one row less, and was mistaken for it: so that
    blank is always read, after the one before it, and counts in full. With `ends`, so do those of every row.
    """
    sample = samples.sample(rng, columns, rows, pairs=_PAIRS, alike=_ALIKE)
    size = Size(columns * CELL, rows * CELL)
    small = size.preview_grid
    prompt = ids(
        f"<|user|>{sentence(rng, sample.drawing)}<sop>{rows} {columns}<eop>"
        f"<sop>{small.height} {small.width}<eop><|image_start|>"
    )
    noted, codes = notes(sample), encode_marked(sample).tolist()
    rest, last_row = list(range(len(noted), small.tokens)), small.tokens - small.width
    if kept is not None:
        rest = sorted({rest[0], last_row - 1, last_row, rest[-1], *rng.sample(rest, kept - 4)})
    after = decode_positions(len(prompt), size)
    where = [*range(len(noted)), *rest, *range(small.tokens, small.tokens + len(codes))]
    positions = torch.cat([torch.arange(len(prompt)).expand(3, -1), after[:, where]], 1)
    full = {last_row}
    if ends:
        full.update(cell for cell in rest if cell % small.width in (0, small.width - 1))
    weights = [1.0] * len(noted) + [1.0 if cell in full else _BLANK for cell in rest] + [1.0] * len(codes)
    return Row(prompt + noted + [BLANK] * len(rest) + codes, positions, weights)


def edit_row(rng: random.Random, columns: int, rows: int, mix: Mix = _BEFORE) -> Row:
    """A picture as the vision tower sees it, what to do with it, and the large grid of the result."""
    edit = samples.edit(rng, columns, rows, pairs=mix.pairs, alike=_ALIKE, shapes=mix.shapes)
    source = encode(edit.source, seen=True).tolist()
    codes = (encode_edited(edit) if mix.seen else encode_marked(edit.result)).tolist()
    before = ids("<|user|><|image_start|>")
    behind = ids(f"<|image_end|>{edit.instruction}<sop>{rows} {columns}<eop><|image_start|>")
    cells = torch.stack(
        [
            torch.zeros(len(codes), dtype=torch.long),
            torch.arange(rows).repeat_interleave(columns),
            torch.arange(columns).repeat(rows),
        ]
    )
    text = len(before) + max(columns, rows)
    large = text + len(behind)
    positions = torch.cat(
        [
            torch.arange(len(before)).expand(3, -1),
            cells + len(before),
            torch.arange(text, large).expand(3, -1),
            cells + large,
        ],
        1,
    )
    return Row(before + source + behind + codes, positions, [1.0] * len(codes))


def loss_of(network: Network, batch: list[Row]) -> tuple[torch.Tensor, Figures]:
    longest = max(len(row.tokens) for row in batch)
    tokens = torch.full((len(batch), longest), tokenizer().pad_token_id)
    positions = torch.zeros(3, len(batch), longest, dtype=torch.long)
    reads, targets, weights = [], [], []
    for index, row in enumerate(batch):
        length = len(row.tokens)
        tokens[index, :length] = torch.tensor(row.tokens)
        positions[:, index, :length] = row.positions
        learned = len(row.weights)
        reads.append(torch.arange(length - learned - 1, length - 1) + index * longest)
        targets.append(tokens[index, length - learned : length])
        weights.append(torch.tensor(row.weights))
    hidden = network(tokens, positions).flatten(0, 1)[torch.cat(reads)]
    codes, weight = torch.cat(targets), torch.cat(weights)
    by_token = network.head.loss(hidden, codes)
    loss = (by_token * weight).sum() / weight.sum()
    counted = float(by_token.detach()[weight == 1].sum()) / len(batch)
    return loss, {"edit" if min(batch[0].weights) == 1 else "prompt": counted}


def stage(seed: int) -> Stage:
    torch.manual_seed(seed)
    network = Network()
    matrices = [p for n, p in network.language.layers.named_parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    rest = [p for p in network.parameters() if id(p) not in chosen]
    optimizers = (
        Muon(matrices, lr=0.02),
        torch.optim.AdamW(rest, lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0),
    )

    def loss(rng: random.Random, over: float) -> tuple[torch.Tensor, Figures]:
        mix = _AFTER if over >= _LATE else _BEFORE
        edits = rng.random() < mix.edits
        columns, rows = _size(rng, *(_EDIT_SIZES if edits else _SIZES))
        cells = columns * rows
        near = [(c, r) for c in SIDES for r in SIDES if _FEWER * cells <= c * r <= cells]

        def sizes(count: int) -> list[tuple[int, int]]:
            return [(columns, rows) if rng.random() < _EQUAL else rng.choice(near) for _ in range(count)]

        if edits:
            return loss_of(network, [edit_row(rng, *size, mix) for size in sizes(_rows(2 * cells + 16))])
        kept = None if rng.random() < mix.whole else _KEPT
        count = _rows(cells + 26 + (kept or 256))
        return loss_of(network, [prompt_row(rng, *size, kept, ends=mix.ends) for size in sizes(count)])

    return Stage("ar", network, optimizers, tuple(rest), loss)


def _size(rng: random.Random, small: float, large: float) -> tuple[int, int]:
    """Columns and rows of a batch's first picture."""
    at = rng.random()
    if at < small:
        return rng.choice(_SMALL), rng.choice(_SMALL)
    if at < small + large:
        return rng.choice(_LARGE), rng.choice(_LARGE)
    return samples.size(rng)


def _rows(tokens: int) -> int:
    return min(max(_BATCH // tokens, _LEAST), _MOST)
