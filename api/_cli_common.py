"""What the subcommands share: where output goes, errors, loading bars, prompts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Results go to the output, everything else beside it, so that a pipe gets results only.
output = Console()
messages = Console(stderr=True)

_LOADING_STAGES = {
    "wait": "waiting for another process that prepares the model",
    "download": "downloading the default model",
    "unpack": "unpacking and checking it",
    "convert": "converting it (once)",
    "save": "writing it to the cache",
    "load": "loading the model",
}
_DTYPES = ("float32", "bfloat16", "float16")


def fail(message: str, code: int = 2) -> NoReturn:
    """End the command with ``message``: code 2 for what the user typed, 1 for all else."""
    messages.print("error:", style="bold red", end=" ")
    messages.print(message, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)


class StageBars:
    """Progress bars of a job in stages, one bar a stage, gone when it is done."""

    def __init__(self, titles: Mapping[str, str]) -> None:
        """Show nothing yet.

        Args:
            titles: what a stage's bar says.
        """
        self._titles = titles
        self._bars = run_bars(transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> StageBars:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Show how far ``stage`` is."""
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(self._titles[stage], total=total)
        self._bars.update(self._tasks[stage], completed=done, total=total)


def run_bars(*, transient: bool = False) -> Progress:
    """Return progress bars beside the output; nothing where nobody watches."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        console=messages,
        transient=transient,
        disable=not sys.stderr.isatty(),  # also where colours are forced
    )


def load(model: str, dtype: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer with progress bars, or end the command with the reason."""
    from .integrations.default_model import ModelUnavailableError, load_model

    if dtype not in _DTYPES:
        fail(f"expected --dtype to be one of {', '.join(_DTYPES)}, got {dtype!r}")
    try:
        with StageBars(_LOADING_STAGES) as bars:
            return load_model(model, _torch_dtype(dtype), bars)
    except ModelUnavailableError as error:
        fail(str(error), code=1)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load a tokenizer by id, folder or "default", or end the command with the reason."""
    from .integrations.default_model import ModelUnavailableError, ensure_default_model

    source = name
    try:
        if name == "default":
            with StageBars(_LOADING_STAGES) as bars:
                source = str(ensure_default_model(bars))
        from transformers import AutoTokenizer

        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
    except ModelUnavailableError as error:
        fail(str(error), code=1)
    except ImportError:
        fail(
            "expected transformers for its tokenizers, got none installed: "
            'pip install "freedraft[transformers]"',
            code=1,
        )
    except (OSError, ValueError) as error:
        fail(f"expected a tokenizer's id or folder, got {name!r}: {error}")
    return tokenizer


def _torch_dtype(name: str) -> torch.dtype | None:
    """Return the dtype; None where torch is missing, which the loader then explains."""
    try:
        import torch
    except ImportError:
        return None
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def choose_drafter(name: str | None) -> str:
    """Return the drafter's name, the library's default for None; end the command if unknown."""
    from .drafters.catalog import (
        CORPUS_PREFIX,
        DEFAULT_DRAFTER,
        DRAFTER_NAMES,
        LAYER_SKIP,
        NO_DRAFTER,
        is_drafter_name,
    )

    if name is None:
        return DEFAULT_DRAFTER
    if name not in (NO_DRAFTER, LAYER_SKIP) and not is_drafter_name(name):
        known = ", ".join((*DRAFTER_NAMES, LAYER_SKIP, f"{CORPUS_PREFIX}FILE.pool", NO_DRAFTER))
        fail(f"expected --drafter to be one of {known}, got {name!r}")
    return name


def compile_drafter(name: str) -> None:
    """Have the drafter's kernels compiled, which takes a while once on a machine."""
    from .drafters import NO_DRAFTER, create_drafter
    from .drafters.catalog import LAYER_SKIP

    if name in (NO_DRAFTER, LAYER_SKIP):
        return
    with messages.status(f"compiling the kernels of {name} (once on this machine)"):
        try:
            create_drafter(name)
        except (OSError, ValueError) as error:  # of a corpus: the file is missing or foreign
            fail(str(error))


def prompt_token_ids(
    tokenizer: PreTrainedTokenizerBase, prompt: str, chat: bool | None
) -> torch.Tensor:
    """Encode ``prompt`` for a model.

    Args:
        tokenizer: of the model.
        prompt: not blank.
        chat: as a user's turn of the tokenizer's chat template; None: when it has a template.

    Returns:
        ``(1, length)`` int64.
    """
    if chat is None:
        chat = bool(tokenizer.chat_template)
    if chat and not tokenizer.chat_template:
        fail("expected a tokenizer with a chat template for --chat, got one without: use --raw")
    if chat:
        turn = [{"role": "user", "content": prompt}]
        prompt = str(
            tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        )
    # A template writes the special tokens itself.
    encoded = tokenizer(prompt, add_special_tokens=not chat, return_tensors="pt")
    ids: torch.Tensor = encoded["input_ids"]
    return ids
