"""One self-contained HTML page: no scripts, no requests, readable in light and dark."""

from __future__ import annotations

from collections.abc import Sequence

from ...integrations.budget import Calibration
from ..replay.encoder import Encoder
from ..replay.prepare import FileReport
from ..replay.requests import RequestSource
from ..replay.result import ReplayResult
from ..replay.walk import AS_LOGGED
from .figures import Figure, LogFigures, log_figures
from .highlights import clean, highlight_blocks
from .style import STYLE
from .svg import number

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_ONLY_HERE = (
    "Numbers of a replay: what the recorded responses would have allowed had the model said "
    "exactly this. No model ran. Speed-ups are predictions from these counts and the step times "
    "named here."
)


def render_report(
    results: Sequence[ReplayResult],
    files: Sequence[FileReport],
    costs: Calibration,
    encoder: Encoder,
    source: RequestSource,
) -> str:
    """Return the page.

    Args:
        results: of :func:`..replay.run.run_replay`, at least one with a step.
        files: what was in each log.
        costs: step times.
        encoder: tokens to text, for the requests that are shown.
        source: of those requests.
    """
    names = list(dict.fromkeys(result.file for result in results))
    logs = [
        log_figures([result for result in results if result.file == name], costs) for name in names
    ]
    body = [_head(logs, costs)]
    for log in logs:
        body.append(_log(log, encoder, source))
    body.append(_files(files))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>Would drafts pay? {clean(', '.join(names))}</title>"
        f"<style>{STYLE}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _head(logs: Sequence[LogFigures], costs: Calibration) -> str:
    cards: list[str] = []
    for log in logs:
        one = log.predictions[log.results.index(log.best)][0]
        verdict = f"{one.speedup:.2f}x" if one.speedup > 1 else "off"
        cards.append(
            f'<div class="card"><span class="soft">{clean(log.name)}</span><b>{verdict}</b>'
            f'<span class="soft">{clean(log.best.drafter)}, {log.best.max_nodes} nodes, one '
            "request at a time</span></div>"
        )
    return (
        "<h1>Would drafts pay on this traffic?</h1>"
        f'<p class="soft">{_ONLY_HERE}</p>'
        f"<p>Step times: {clean(costs.model)} on {clean(costs.device)} "
        f"({clean(costs.engine)}), <b>{clean(costs.source)}</b>.</p>"
        f'<div class="cards">{"".join(cards)}</div>'
    )


def _log(log: LogFigures, encoder: Encoder, source: RequestSource) -> str:
    best = log.best
    load = (
        "overlapping as the log's times say"
        if best.concurrency == AS_LOGGED
        else f"{best.concurrency} at a time"
    )
    about = (
        f"{best.requests} requests, {number(best.tokens)} response tokens, "
        f"{number(best.prompt_tokens)} prompt tokens; {load}; "
        f"{'warm: pools are kept' if best.warm else 'cold: each request starts anew'}."
    )
    sections = [
        f'<h2>{clean(log.name)}</h2><p class="soft">{about}</p>',
        _table(log),
        f'<div class="grid">{"".join(map(_figure, log.figures))}</div>',
    ]
    tally = best.tally
    if tally.most:
        sections.append(
            f"<h2>{clean(log.name)}: who gains most and least</h2>"
            f'<p class="soft">With {clean(best.drafter)} and {best.max_nodes} nodes. '
            "<mark>Coloured</mark>: tokens that a draft would have brought. Requests of at least "
            "16 tokens.</p>"
            '<div class="grid"><section><h3>Most</h3>'
            f"{highlight_blocks(tally.most, source, encoder)}</section>"
            "<section><h3>Least</h3>"
            f"{highlight_blocks(tally.least, source, encoder)}</section></div>"
        )
    return "".join(sections)


def _figure(figure: Figure) -> str:
    table = ""
    if figure.rows:
        heads, *rows = ([clean(cell) for cell in row] for row in figure.rows)
        table = f'<div class="under">{_grid(heads, [_row(row) for row in rows])}</div>'
    return (
        f"<figure><h3>{clean(figure.title)}</h3>"
        f"<figcaption>{clean(figure.text)}</figcaption>{figure.svg}{table}</figure>"
    )


def _table(log: LogFigures) -> str:
    sampled = any(result.expected_tokens_per_step for result in log.results)
    heads = ["drafter", "nodes", "tokens per step", *(["under sampling"] if sampled else [])]
    heads += ["drafted per step", "accepted", "calibration error", "draft, us a step"]
    heads += ["speed-up at 1", "at 8", "at 32"]
    rows: list[str] = []
    for result, predicted in zip(log.results, log.predictions, strict=True):
        speedups = {one.concurrency: one.speedup for one in predicted}
        expected = result.expected_tokens_per_step
        cells = [
            clean(result.drafter),
            str(result.max_nodes),
            f"{result.tokens_per_step:.2f}",
            *([f"{expected[0]:.2f} to {expected[1]:.2f}" if expected else "-"] if sampled else []),
            f"{result.drafted_per_step:.1f}",
            f"{result.acceptance_rate:.1%}",
            f"{result.calibration_error:.3f}",
            f"{result.draft_us_mean:.0f}",
            *(f"{speedups[load]:.2f}" for load in (1, 8, 32)),
        ]
        rows.append(_row(cells, "best" if result is log.best else ""))
    return _wide(heads, rows)


def _row(cells: Sequence[str], style: str = "") -> str:
    first, *others = cells
    told = f' class="{style}"' if style else ""
    return (
        f'<tr{told}><td class="name">{first}</td>'
        + "".join(f"<td>{cell}</td>" for cell in others)
        + "</tr>"
    )


def _wide(heads: Sequence[str], rows: Sequence[str]) -> str:
    return f'<div class="wide">{_grid(heads, rows)}</div>'


def _grid(heads: Sequence[str], rows: Sequence[str]) -> str:
    first, *others = heads
    titles = f'<th class="name">{first}</th>' + "".join(f"<th>{head}</th>" for head in others)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _files(files: Sequence[FileReport]) -> str:
    heads = ["log", "lines", "requests", "without a request", "unanswered", "broken, skipped"]
    rows: list[str] = []
    examples: list[str] = []
    for report in files:
        skipped = ", ".join(f"{count} {why}" for why, count in sorted(report.skipped.items()))
        numbers = (report.lines, report.requests, report.other_lines, report.unanswered)
        rows.append(_row([clean(report.file), *map(str, numbers), clean(skipped) or "0"]))
        examples += report.examples
    told = "".join(f"<li>{clean(example)}</li>" for example in examples)
    listed = f'<p class="soft">The first of them:</p><ul class="soft">{told}</ul>' if told else ""
    return f"<h2>The logs</h2>{_wide(heads, rows)}{listed}"
