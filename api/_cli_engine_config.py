"""``freedraft vllm-config``: the flags that switch freedraft on in an engine, checked, to paste."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from ._cli_common import fail

PROPOSER = "freedraft.FreedraftProposer"
_MAX_SPEC_LEN = 128  # vLLM's own bound


def vllm_config(
    num_speculative_tokens: Annotated[
        int,
        typer.Option(
            "--num-speculative-tokens", "-k", help="Most drafted tokens.", min=1, max=_MAX_SPEC_LEN
        ),
    ] = 16,
    drafter: Annotated[str | None, typer.Option(help="What drafts, by name.")] = None,
    pool: Annotated[
        list[Path] | None, typer.Option(metavar="FILE.pool", help="A pool to ask too; repeatable.")
    ] = None,
    memory_mib: Annotated[
        int | None, typer.Option(help="Most memory for requests' and finished responses' tokens.")
    ] = None,
    warm_file: Annotated[
        Path | None, typer.Option(help="Keep finished responses here across restarts.")
    ] = None,
    sharing: Annotated[
        str | None, typer.Option(help="'salt' or 'none': which requests learn from which.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="'measured' or 'full': whether drafts are cut to what pays.")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Most drafted tokens by running requests: 1:16,8:4,32:0.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Step times that 'freedraft calibrate' wrote.")
    ] = None,
    settings: Annotated[
        Path | None, typer.Option(help="A JSON file of settings; options go before it.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print arguments of vllm.LLM as JSON instead.")
    ] = False,
) -> None:
    """Check settings and print vLLM's flags for them."""
    from .integrations.engine_config import EngineConfig

    values: dict[str, Any] = {
        "drafter": drafter,
        "pools": [str(path.absolute()) for path in pool] if pool else None,
        "memory_mib": memory_mib,
        "warm_file": None if warm_file is None else str(warm_file.absolute()),
        "sharing": sharing,
        "budget": budget,
        "schedule": None if schedule is None else _parse_schedule(schedule),
        "calibration": None if calibration is None else str(calibration.absolute()),
    }
    given = {name: value for name, value in values.items() if value is not None}
    try:
        base = {} if settings is None else EngineConfig.load(settings).to_mapping()
        config = EngineConfig.from_mapping({**base, **given})
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{settings}: {error.strerror or error}")
    for path in [*(pool or ()), *([calibration] if calibration else ())]:
        if not path.is_file():
            fail(f"expected a file, got {path}")
    typer.echo(_flags(num_speculative_tokens, config.to_mapping(), as_json))


def _flags(num_speculative_tokens: int, settings: dict[str, object], as_json: bool) -> str:
    speculative = {"model": PROPOSER, "num_speculative_tokens": num_speculative_tokens}
    additional = {"freedraft": settings}
    if as_json:
        arguments: dict[str, object] = {"speculative_config": speculative}
        if settings:
            arguments["additional_config"] = additional
        return json.dumps(arguments, indent=2)
    flags = f"--speculative-config {shlex.quote(json.dumps(speculative))}"
    if settings:
        flags += f" --additional-config {shlex.quote(json.dumps(additional))}"
    return flags


def _parse_schedule(text: str) -> dict[str, str]:
    pairs = [part.partition(":") for part in text.split(",")]
    if not all(colon and load and nodes for load, colon, nodes in pairs):
        fail(f"expected a schedule like 1:16,8:4,32:0, got {text!r}")
    return {load.strip(): nodes.strip() for load, _, nodes in pairs}
