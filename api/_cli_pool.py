"""``freedraft pool``: build, describe and check the pool files of the corpus drafter."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from ._cli_common import StageBars, fail, load_tokenizer, messages, output

if TYPE_CHECKING:
    from .drafters.corpus.index import CorpusIndex
    from .drafters.corpus.pool_file import PoolDescription
    from .workbench.corpus_build import PoolTokenizer

pool = typer.Typer(
    name="pool",
    help="Pool files of a repository or of documents, for the corpus drafter.",
    no_args_is_help=True,
)

_BUILD_STAGES = {
    "list": "looking for files",
    "encode": "tokens",
    "sort": "sorting the places",
    "write": "writing the pool",
}
TokenizerOption = Annotated[
    str, typer.Option(help="A tokenizer's id or folder; 'default' is the embedded model's.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


@pool.command()
def build(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Files, folders or repositories.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="NAME.pool", help="The pool.")],
    tokenizer: TokenizerOption = "default",
    max_file_mib: Annotated[
        float, typer.Option(help="Larger files are left out.", min=0.001)
    ] = 8.0,
    as_json: JsonOption = False,
) -> None:
    """Build a pool from text files; what .gitignore files leave out stays out."""
    from .drafters.corpus.index import FAST_SORT, has_fast_sort
    from .workbench.corpus_build import CorpusBuildError, build_pool

    loaded = _pool_tokenizer(tokenizer)
    if not has_fast_sort():
        messages.print(f"{FAST_SORT} is not installed: sorting takes about six times as long")
    try:
        with StageBars(_BUILD_STAGES) as bars:
            report = build_pool(
                paths, out, loaded, max_file_bytes=int(max_file_mib * (1 << 20)), progress=bars
            )
    except CorpusBuildError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{out}: {error.strerror or error}", code=1)
    if as_json:
        _print_json({"path": str(out), **asdict(report)})
        return
    skipped = ", ".join(f"{count} {reason}" for reason, count in sorted(report.skipped.items()))
    _print_rows(
        {
            "pool": str(out),
            "documents": f"{report.num_documents:,}",
            "left out": skipped or "none",
            "tokens": f"{report.num_tokens:,}",
            "size": _size(report.num_file_bytes),
        }
    )


@pool.command()
def info(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A pool.")],
    as_json: JsonOption = False,
) -> None:
    """Say what a pool holds and which tokenizer it is for."""
    from .drafters.corpus.pool_file import open_pool
    from .drafters.snapshot import SnapshotError

    try:
        index, description = open_pool(file)
    except SnapshotError as error:
        fail(str(error), code=1)
    except OSError as error:
        fail(f"{file}: {error.strerror or error}")
    facts = _facts(file, index, description)
    if as_json:
        _print_json(facts)
        return
    _print_rows(
        {
            "pool": str(file),
            "tokenizer": description.tokenizer,
            "fingerprint": description.fingerprint,
            "documents": f"{description.num_documents:,}",
            "text": _size(description.num_text_bytes),
            "tokens": f"{facts['num_tokens']:,}",
            "size": _size(file.stat().st_size),
        }
    )


@pool.command()
def verify(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Pools.")],
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Also check that they are for this tokenizer; 'default' as for build."),
    ] = None,
) -> None:
    """Check pools: format, checksum, each place there and in order, tokenizer if one is named."""
    from .drafters.corpus.pool_file import tokenizer_fingerprint, verify_pool
    from .drafters.snapshot import SnapshotError

    fingerprint = None
    if tokenizer is not None:
        fingerprint = tokenizer_fingerprint(_pool_tokenizer(tokenizer).vocabulary)
    num_bad = 0
    for file in files:
        try:
            _, description = verify_pool(file, fingerprint)
        except (SnapshotError, OSError) as error:
            num_bad += 1
            # OSError names the file too, with its number in front
            reason = error.strerror if isinstance(error, OSError) else None
            messages.print("bad:", style="bold red", end=" ")
            messages.print(f"{file}: {reason}" if reason else str(error), markup=False)
            continue
        output.print(f"good: {file} ({description.num_documents:,} documents)", markup=False)
    if num_bad:
        raise typer.Exit(1)


def _pool_tokenizer(name: str) -> PoolTokenizer:
    """Return a tokenizer by id or folder as pools take it."""
    from .workbench.corpus_build import PoolTokenizer

    tokenizer = load_tokenizer(name)

    def encode(texts: list[str]) -> list[list[int]]:
        # verbose=False: a document longer than the model's context is no news here
        encoded = tokenizer(
            texts, add_special_tokens=False, return_attention_mask=False, verbose=False
        )
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    return PoolTokenizer(name, tokenizer.get_vocab(), encode)


def _facts(file: Path, index: CorpusIndex, description: PoolDescription) -> dict[str, object]:
    num_barriers = int((index.tokens < 0).sum())
    return {
        "path": str(file),
        **asdict(description),
        "num_tokens": index.tokens.size - num_barriers,
        "num_places": index.order.size,
        "num_file_bytes": file.stat().st_size,
    }


def _print_json(facts: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(facts, indent=2) + "\n")


def _print_rows(rows: dict[str, str]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in rows.items():
        table.add_row(name, Text(value))  # no markup: names of files may hold brackets
    output.print(table)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.1f} MiB"
