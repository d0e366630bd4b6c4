"""What the load test asks for, and what must come back for it."""

import random
from dataclasses import dataclass
from itertools import count
from typing import Any

#: Seeds are unsigned 32-bit; image i of a job has (seed + i) mod 2^32.
SEED_LIMIT = 2**32
#: Prompts that the demo checkpoint draws right every time when AR takes the likeliest tokens.
SURE = (
    "a red circle on a blue background",
    "a yellow square on a blue background",
    "a green triangle on a red background",
    "an orange cross on a green background",
    "a yellow star on a purple background",
    "a black ring on a yellow background",
)
#: A prompt is text in any script.
ODD = ("猫と犬 🐈", 'the sign "Grüße"', "a red circle above a blue square on a white background", "שלום")
_SIZES = ((128, 128), (128, 128), (256, 256), (96, 130))
_FORMATS = ("png", "jpeg", "webp")


@dataclass(frozen=True, slots=True)
class Order:
    """One job as it is asked for. `run` and `number` travel in its metadata; sizes in pixels.

    `judged`: the demo checkpoint draws it so surely that its picture can be judged by its prompt.
    """

    run: str
    number: str
    prompt: str
    width: int
    height: int
    n: int
    seed: int
    steps: int
    output_format: str
    temperature: float
    embed_metadata: bool
    judged: bool = False

    @property
    def size(self) -> str:
        return f"{self.width}x{self.height}"

    @property
    def metadata(self) -> dict[str, str]:
        return {"loadtest": self.run, "order": self.number}

    def image_seed(self, index: int) -> int:
        return (self.seed + index) % SEED_LIMIT

    def body(self) -> dict[str, Any]:
        """The JSON of `POST /v1/jobs`."""
        return {
            "prompt": self.prompt,
            "size": self.size,
            "n": self.n,
            "seed": self.seed,
            "steps": self.steps,
            "output_format": self.output_format,
            "temperature": self.temperature,
            "embed_metadata": self.embed_metadata,
            "metadata": self.metadata,
        }


class OrderBook:
    """Draws orders of every kind, each with a number of its own."""

    def __init__(self, run: str, seed: int) -> None:
        self.run = run
        self._random = random.Random(seed)
        self._numbers = count(1)

    def draw(self) -> Order:
        """Mostly small pictures of a few steps; some that can be judged; some that were asked for before."""
        return self._random.choices((self._small, self._sure, self._again), (6, 2, 2))[0]()

    def long(self) -> Order:
        """One that takes long enough to be watched, left or canceled."""
        return self._order(self._random.choice(SURE), size=(128, 128), n=2, steps=20)

    def _small(self) -> Order:
        chosen = self._random
        return self._order(
            chosen.choice(SURE + ODD),
            size=chosen.choice(_SIZES),
            n=chosen.choice((1, 1, 2, 3)),
            # Some at the end of the range, where the seeds of the job's pictures begin again at 0.
            seed=chosen.choice((chosen.randrange(SEED_LIMIT), SEED_LIMIT - 1)),
            steps=chosen.choice((1, 2, 4)),
            output_format=chosen.choice(_FORMATS),
            embed_metadata=chosen.random() < 0.7,
        )

    def _sure(self) -> Order:
        return self._order(self._random.choice(SURE), size=(256, 256), steps=12, temperature=0.0, judged=True)

    def _again(self) -> Order:
        """One of six, whose pictures must have the same bytes each time."""
        seed = self._random.randrange(3)
        return self._order(SURE[seed], size=(128, 128), n=2, seed=seed, steps=2, embed_metadata=False)

    def _order(
        self,
        prompt: str,
        *,
        size: tuple[int, int],
        steps: int,
        n: int = 1,
        seed: int | None = None,
        output_format: str = "png",
        temperature: float = 0.9,
        embed_metadata: bool = True,
        judged: bool = False,
    ) -> Order:
        return Order(
            run=self.run,
            number=str(next(self._numbers)),
            prompt=prompt,
            width=size[0],
            height=size[1],
            n=n,
            seed=self._random.randrange(SEED_LIMIT) if seed is None else seed,
            steps=steps,
            output_format=output_format,
            temperature=temperature,
            embed_metadata=embed_metadata,
            judged=judged,
        )
