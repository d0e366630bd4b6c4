"""Counts a prompt's AR tokens before anything is queued, with the checkpoint's own tokenizer file."""

from typing import Self

from tokenizers import Tokenizer

from app.checkpoint import Checkpoint
from app.errors import BrokenCheckpoint, RefusedInput
from app.settings import Settings

#: Tokens that the chat template and the grid sizes add to a prompt, with some to spare.
_TEMPLATE_TOKENS = 40
#: A byte-level tokenizer never makes more tokens than there are bytes, and normalization at most triples those.
_MOST_TOKENS_A_BYTE = 3


class PromptLimit:
    def __init__(self, checkpoint: Checkpoint, *, max_chars: int, max_tokens: int) -> None:
        path = checkpoint.tokenizer_file
        if not path.is_file():
            raise BrokenCheckpoint(f"the checkpoint file {path} is missing; the API counts prompt tokens with it")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise BrokenCheckpoint(f"the checkpoint file {path} is not a tokenizer: {error}") from error
        self._max_chars = max_chars
        self._max_tokens = max_tokens - _TEMPLATE_TOKENS

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(
            Checkpoint(settings.checkpoint), max_chars=settings.max_prompt_chars, max_tokens=settings.max_prompt_tokens
        )

    def check(self, prompt: str) -> None:
        """Raises RefusedInput for a prompt that no AR worker would take."""
        if len(prompt) > self._max_chars:
            raise RefusedInput("prompt", f"must be at most {self._max_chars} characters, this has {len(prompt)}")
        if _MOST_TOKENS_A_BYTE * len(prompt.encode()) <= self._max_tokens:
            return
        tokens = len(self._tokenizer.encode(prompt, add_special_tokens=False).ids)
        if tokens > self._max_tokens:
            raise RefusedInput("prompt", f"must be at most {self._max_tokens} tokens, this has {tokens}")
