"""The DiT: from the codes of the large grid to latents, by flow matching along the steps that the pipeline takes."""

import random
from collections.abc import Iterator

import torch
from diffusers import AutoencoderKL, GlmImageTransformer2DModel
from diffusers.models.transformers.transformer_glm_image import GlmImageKVCache
from torch import nn
from transformers import ByT5Tokenizer, T5Config, T5EncoderModel

from app.bench.world import CELL, COLOURS
from demo_model import samples, vae
from demo_model.codebook import BACK_OF, BLANK, CODES, FRONT_OF, PATTERN_OF, PATTERNS, FactoredTable, encode
from demo_model.muon import Muon
from demo_model.training import Figures, Stage

#: Few wide heads: the class normalises queries and keys without a gain, so that scores end at the root of the width.
WIDTH, HEADS, LAYERS, GLYPH_WIDTH = 128, 2, 6, 32
#: Patches of a batch, about; at least and at most so many pictures. A cell is four patches.
_BATCH, _LEAST, _MOST = 2560, 3, 32
#: Sides in cells that pictures to be painted mostly have; the rest are sizes as the AR model has them.
_SMALL, _SMALL_PART = (4, 5, 6, 8, 10), 0.6
#: Pictures of one size that are kept, in cells, and the part of a batch that is new.
_KEPT, _NEW = 6400, 0.125
#: Parts of the batches, or of the pictures: without codes (for guidance), with letters, beside a source (for edits),
#: with codes as the vision tower sees them, with a size that is not theirs (for sizes that were never trained).
_DROPPED, _LETTERS, _SOURCE, _SEEN, _WRONG_SIZE = 0.1, 0.2, 0.12, 0.3, 0.3
#: Parts of the pictures that get codes as a model gets them wrong: any code, and another pattern on edges.
_SLIPS = ((0.15, 0.02), (0.15, 0.06))
_OTHER_PATTERN = 0.08

Bank = dict[str, dict[str, torch.Tensor]]


def build_text_encoder() -> T5EncoderModel:
    """Random and never trained: what stands in quotes reaches the DiT, but teaches it nothing."""
    torch.manual_seed(3)
    config = T5Config(
        vocab_size=384,
        d_model=GLYPH_WIDTH,
        d_kv=16,
        d_ff=64,
        num_layers=1,
        num_heads=2,
        feed_forward_proj="gated-gelu",
    )
    return T5EncoderModel(config).eval()


def build() -> GlmImageTransformer2DModel:
    return GlmImageTransformer2DModel(
        patch_size=2,
        in_channels=vae.CHANNELS,
        out_channels=vae.CHANNELS,
        num_layers=LAYERS,
        attention_head_dim=WIDTH // HEADS,
        num_attention_heads=HEADS,
        text_embed_dim=GLYPH_WIDTH,
        time_embed_dim=64,
        condition_dim=32,
        prior_vq_quantizer_codebook_size=CODES + 2,  # the image's start and end cannot break the lookup
    )


def _untrained() -> GlmImageTransformer2DModel:
    network = build()
    network.prior_token_embedding = FactoredTable(WIDTH, 0.5)
    for block in network.transformer_blocks:
        nn.init.zeros_(block.norm1.linear.weight)
        nn.init.zeros_(block.norm1.linear.bias)
        with torch.no_grad():
            for gate in (4, 5, 10, 11):  # of attention and of the MLP, for the image and for the text
                block.norm1.linear.bias[gate * WIDTH : (gate + 1) * WIDTH] = 0.3
    nn.init.zeros_(network.proj_out.weight)
    nn.init.zeros_(network.proj_out.bias)
    return network


class Pictures:
    """Latents and codes to train on, made as they are needed and used several times.

    They are kept in `bank`, by size: latents [n, channels, height, width], codes and seen [n, cells].
    """

    def __init__(self, coder: AutoencoderKL) -> None:
        self.bank: Bank = {}
        self._coder = coder
        shape = (1, vae.CHANNELS, 1, 1)
        self._mean = torch.tensor(coder.config.latents_mean).view(shape)
        self._std = torch.tensor(coder.config.latents_std).view(shape)

    def batch(self, rng: random.Random, columns: int, rows: int, count: int) -> dict[str, torch.Tensor]:
        kept = self.bank.get(f"{columns}x{rows}")
        few = kept is None or len(kept["codes"]) < 2 * count
        new = self._make(rng, columns, rows, count if few else max(1, int(count * _NEW)))
        whole = {name: torch.cat([new[name], kept[name]]) if kept else new[name] for name in new}
        most = max(_KEPT // (columns * rows), 2 * count)
        self.bank[f"{columns}x{rows}"] = {name: values[:most] for name, values in whole.items()}
        fresh = len(new["codes"])
        old = [rng.randrange(fresh, len(whole["codes"])) for _ in range(count - fresh)]
        return {name: values[[*range(fresh), *old]] for name, values in whole.items()}

    @torch.no_grad()
    def _make(self, rng: random.Random, columns: int, rows: int, count: int) -> dict[str, torch.Tensor]:
        made = [samples.sample(rng, columns, rows) for _ in range(count)]
        pixels = torch.stack([vae.tensor(sample) for sample in made]).contiguous(memory_format=torch.channels_last)
        latents = (self._coder.encode(pixels).latent_dist.mode() - self._mean) / self._std
        return {
            "latents": latents.contiguous().half(),
            "codes": torch.stack([encode(sample) for sample in made]),
            "seen": torch.stack([encode(sample, seen=True) for sample in made]),
        }


def stage(seed: int, coder: AutoencoderKL) -> Stage:
    """`coder` is the trained VAE, whose config knows the latents' mean and deviation."""
    torch.manual_seed(seed)
    pictures, letters = Pictures(coder), list(_letters())
    network = _untrained()
    matrices = [p for n, p in network.transformer_blocks.named_parameters() if p.ndim == 2 and "norm1" not in n]
    chosen = {id(p) for p in matrices}
    rest = [p for p in network.parameters() if id(p) not in chosen]
    optimizers = (
        Muon(matrices, lr=0.015),
        torch.optim.AdamW(rest, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0),
    )

    def loss(rng: random.Random, _over: float) -> tuple[torch.Tensor, Figures]:
        small = rng.random() < _SMALL_PART
        columns, rows = (rng.choice(_SMALL), rng.choice(_SMALL)) if small else samples.size(rng)
        patches = 4 * columns * rows
        count = min(max(_BATCH // patches, _LEAST), _MOST)
        batch = pictures.batch(rng, columns, rows, count)
        codes = batch["seen"] if rng.random() < _SEEN else batch["codes"]
        prior = _upsampled(torch.stack([_slipped(rng, row) for row in codes]), columns, rows)
        text = (rng.choice(letters) if rng.random() < _LETTERS else letters[0]).expand(count, -1, -1)
        sizes = (samples.size(rng) if rng.random() < _WRONG_SIZE else (columns, rows) for _ in range(count))
        told = {
            "target_size": torch.tensor([[height * CELL, width * CELL] for width, height in sizes]).float(),
            "crop_coords": torch.zeros(count, 2),
        }
        latents = batch["latents"].float()
        source = None
        if rng.random() < _SOURCE:
            source = _written(network, latents.roll(rng.choice((0, 1)), 0), prior, text, told)
        dropped = torch.tensor([source is None and rng.random() < _DROPPED for _ in range(count)])
        steps = torch.rand(count) * 999 + 1
        sigma = _sigma(steps / 1000, patches)
        at = sigma.view(-1, 1, 1, 1)
        noise = torch.randn_like(latents)
        painted = network(
            hidden_states=(1 - at) * latents + at * noise,
            encoder_hidden_states=text,
            prior_token_id=prior,
            prior_token_drop=dropped[:, None].expand(-1, patches),
            timestep=steps - 1,  # the pipeline tells the step before the shift, less one
            kv_caches=source,
            return_dict=False,
            **told,
        )[0]
        errors = (painted - (noise - latents)).square().mean((1, 2, 3))
        return errors.mean(), _figures(errors.detach(), sigma, dropped)

    return Stage("dit", network, optimizers, tuple(rest), loss, pictures.bank)


def _figures(errors: torch.Tensor, sigma: torch.Tensor, dropped: torch.Tensor) -> Figures:
    parts = {"noisy": sigma > 0.7, "middle": (sigma <= 0.7) & (sigma > 0.3), "clear": sigma <= 0.3}
    found = {name: errors[part & ~dropped] for name, part in parts.items()}
    return {name: float(values.mean()) for name, values in found.items() if len(values)}


def _sigma(part: torch.Tensor, patches: int) -> torch.Tensor:
    """The noise's part at these parts of the way, shifted as the pipeline's scheduler does for so many patches."""
    shift: float = (patches / 256) ** 0.5 * 0.75 + 0.25
    return shift / (shift + (1 / part - 1))


@torch.no_grad()
def _written(
    network: GlmImageTransformer2DModel,
    latents: torch.Tensor,
    prior: torch.Tensor,
    text: torch.Tensor,
    told: dict[str, torch.Tensor],
) -> GlmImageKVCache:
    """The keys and values of source pictures, as the pipeline writes them before an edit."""
    cache = GlmImageKVCache(LAYERS)
    cache.set_mode("write")
    network(
        hidden_states=latents,
        encoder_hidden_states=text[:, :0],
        prior_token_id=prior,
        prior_token_drop=torch.zeros_like(prior, dtype=torch.bool),
        timestep=torch.zeros(len(latents)),
        kv_caches=cache,
        **told,
    )
    cache.set_mode("read")
    return cache


@torch.no_grad()
def _letters() -> Iterator[torch.Tensor]:
    """Embeddings of no text, and then of some random texts."""
    encoder, tokens = build_text_encoder(), ByT5Tokenizer()
    rng = random.Random(0)  # noqa: S311
    words = ["".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ abc") for _ in range(1 + n // 5)) for n in range(40)]
    for word in ["", *words]:
        yield encoder(torch.tensor([tokens(word).input_ids])).last_hidden_state


def _upsampled(codes: torch.Tensor, columns: int, rows: int) -> torch.Tensor:
    """From [n, cells] to [n, patches]: each cell's code for its four patches."""
    grid = codes.view(-1, rows, columns)
    return grid.repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1)


def _slipped(rng: random.Random, codes: torch.Tensor) -> torch.Tensor:
    """Some with mistakes as an AR model makes them: other codes of the picture's colours, other patterns on edges."""
    at = rng.random()
    for part, share in _SLIPS:
        at -= part
        if at < 0:
            return _with_slips(codes, share)
    return codes


def _with_slips(codes: torch.Tensor, share: float) -> torch.Tensor:
    codes = codes.clone()
    colours = torch.cat([FRONT_OF[codes], BACK_OF[codes]])
    possible = torch.nonzero(torch.isin(FRONT_OF, colours) & torch.isin(BACK_OF, colours))[:, 0]
    possible = possible[possible < BLANK]
    wrong = torch.rand(len(codes)) < share
    codes[wrong] = possible[torch.randint(len(possible), (int(wrong.sum()),))]
    turned = (PATTERN_OF[codes] < PATTERNS) & (torch.rand(len(codes)) < _OTHER_PATTERN)
    plain = len(COLOURS)
    pairs = (BLANK - plain) // PATTERNS
    other = plain + torch.randint(PATTERNS, (len(codes),)) * pairs + (codes - plain) % pairs
    return torch.where(turned, other, codes)
