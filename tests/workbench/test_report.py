"""The report: well-formed, self-contained, escaped; drawn by a real browser where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from freedraft import cli
from freedraft.drafters.catalog import create_drafter
from freedraft.integrations.budget import load_calibration
from freedraft.workbench.replay.encoder import IdsOnly
from freedraft.workbench.replay.match_lengths import match_buckets
from freedraft.workbench.replay.prepare import FileReport
from freedraft.workbench.replay.requests import ListSource, TokenRequest
from freedraft.workbench.replay.result import ReplayResult
from freedraft.workbench.replay.samples import Highlight
from freedraft.workbench.replay.tally import Tally
from freedraft.workbench.replay.walk import Walk
from freedraft.workbench.report import render_report
from freedraft.workbench.report.highlights import clean, highlight_blocks
from freedraft.workbench.report.svg import Axis, Series, bar_plot, line_plot, nice_ticks, number

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EVIL = "</pre><script>alert(1)</script>&\"'\x00\x1b"


class Evil:
    """Decodes every token to what breaks pages that do not escape."""

    name = EVIL

    def decode(self, token_ids: list[int]) -> str:
        return "".join(f"<{token}>{EVIL}" for token in token_ids)

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [[] for _ in texts]

    def render(self, turns: object) -> str:
        return ""

    def token_id(self, text: str) -> int | None:
        return None


def requests() -> list[TokenRequest]:
    texts = [([n, n + 1, n + 2] * 9, [n, n + 1, n + 2] * (5 + n)) for n in range(14)]
    return [
        TokenRequest(
            f"{EVIL}:{number}",
            f"kind {EVIL}",
            np.array(prompt, np.int32),
            np.array(response, np.int32),
            matches=match_buckets(np.array(prompt, np.int32), np.array(response, np.int32)),
        )
        for number, (prompt, response) in enumerate(texts)
    ]


def results(drafters: tuple[str, ...], budgets: tuple[int, ...]) -> list[ReplayResult]:
    source = requests()
    found = []
    for name in drafters:
        for budget in budgets:
            tally = Tally(budget)
            Walk(lambda name=name: create_drafter(name), ListSource(source), tally).run(
                range(len(source)), 400
            )
            found.append(
                ReplayResult.from_tally(tally, file=f"log {EVIL}", drafter=name, warm=True)
            )
    return found


def page(drafters: tuple[str, ...] = ("ngram", "edit"), budgets: tuple[int, ...] = (2, 8)) -> str:
    report = FileReport(f"log {EVIL}", 20, 14, 3, 2, 0, {"cut off": 1}, [f"{EVIL}:3: cut"])
    return render_report(
        results(drafters, budgets),
        [report],
        load_calibration("h100"),
        Evil(),
        ListSource(requests()),
    )


def parse(text: str) -> ElementTree.Element:
    """Return the page as XML, which is stricter than HTML: each element closed and nested."""
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


@pytest.mark.parametrize("budgets", [(0,), (4,), (2, 8)])
def test_the_page_is_well_formed(budgets: tuple[int, ...]) -> None:
    root = parse(page(budgets=budgets))
    titles = [heading.text for heading in root.iter("h3")]
    assert "Predicted speed-up by concurrency" in titles
    assert "Where the time would go" in titles
    assert ("Acceptance by position" in titles) == (budgets != (0,))
    assert len(list(root.iter("svg"))) == len(list(root.iter("figure"))) >= 6


def test_the_page_asks_for_nothing() -> None:
    text = page()
    root = parse(text)
    names = {element.tag for element in root.iter()}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert not re.search(r"https?:|url\(|@import", text)
    for element in root.iter():
        assert not {"src", "href", "srcset"} & set(element.attrib)
        assert not any(name.startswith("on") for name in element.attrib)
    policy = next(m for m in root.iter("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert (policy.get("content") or "").startswith("default-src 'none'")


def test_what_logs_say_is_text_and_nothing_else() -> None:
    root = parse(page())
    shown = "".join(root.itertext())
    assert "</pre><script>alert(1)</script>&\"'\u2400\u241b" in shown
    assert "\x00" not in shown and "\x1b" not in shown


def test_drafted_tokens_are_coloured() -> None:
    request = TokenRequest(
        "f:7", "w", np.array([1], np.int32), np.array([10, 11, 12, 13, 14], np.int32)
    )
    highlight = Highlight(0, "f:7", 5, [2, 0, 1])
    text = highlight_blocks([highlight], ListSource([request]), IdsOnly())
    root = ElementTree.fromstring(text)
    assert [mark.text for mark in root.iter("mark")] == ["[10][11]", "[14]"]
    assert "".join(root.itertext()).endswith("[10][11][12][13][14]")
    assert "1.67 tokens per step, 5 tokens" in "".join(root.itertext())


def test_at_most_ten_of_each_are_shown() -> None:
    root = parse(page(("ngram",), (8,)))
    summaries = ["".join(summary.itertext()) for summary in root.iter("summary")]
    assert len(summaries) == 20
    rates = [float(summary.split()[0]) for summary in summaries]
    assert rates[:10] == sorted(rates[:10], reverse=True)
    assert rates[10:] == sorted(rates[10:])


@given(st.text())
def test_any_text_can_be_shown(text: str) -> None:
    shown = ElementTree.fromstring(f"<p>{clean(text)}</p>").text or ""
    assert len(shown) == len(text)
    assert all(a == b for a, b in zip(shown, text, strict=True) if a.isprintable() and a.isascii())


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_round_and_inside(low: float, width: float) -> None:
    ticks = nice_ticks(low, low + width)
    assert 1 <= len(ticks) <= 12
    assert all(low - width * 1e-3 <= tick <= low + width * 1.001 for tick in ticks)


@pytest.mark.parametrize(
    ("value", "text"), [(3, "3"), (0.25, "0.25"), (12_345, "12.3k"), (2.5e6, "2.5M"), (3e9, "3G")]
)
def test_numbers_for_people(value: float, text: str) -> None:
    assert number(value) == text


def test_points_stand_where_their_values_are() -> None:
    x = Axis("x", 1, 100, log=True, ticks=(1, 10, 100))
    text = line_plot([Series("a", [(1, 0), (10, 1), (100, 2)], 0)], x, Axis("y", 0, 2), "plot")
    root = ElementTree.fromstring(text)
    places = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter("circle")]
    assert places[1][0] == pytest.approx((places[0][0] + places[2][0]) / 2, abs=0.2)
    assert places[0][1] > places[1][1] > places[2][1]
    titles = [title.text for title in root.iter("title")]
    assert titles == ["a: 1, 0", "a: 10, 1", "a: 100, 2"]


def test_stacked_bars_stand_on_each_other() -> None:
    series = [Series("a", [(0, 1.0)], 0), Series("b", [(0, 2.0)], 1)]
    text = bar_plot(series, Axis("x", -0.5, 0.5, ticks=[0]), Axis("y", 0, 4), "p", stacked=True)
    lower, upper = ElementTree.fromstring(f"<div>{text}</div>").iter("rect")
    top = float(lower.get("y", ""))
    assert float(upper.get("y", "")) + float(upper.get("height", "")) == pytest.approx(top, abs=0.2)
    ratio = float(upper.get("height", "")) / float(lower.get("height", ""))
    assert ratio == pytest.approx(2, rel=0.02)


def browser() -> str | None:
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


@pytest.mark.skipif(browser() is None, reason=f"no browser among {', '.join(BROWSERS)}")
def test_a_browser_draws_it(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    record = {"prompt_ids": [1, 2, 3] * 2, "response_ids": [1, 2, 3, 4] * 5}
    log.write_text(json.dumps(record) + "\n", encoding="utf-8")
    html, picture = tmp_path / "r.html", tmp_path / "r.png"
    args = [str(log), "--tokenizer", "none", "--drafter", "ngram", "--max-nodes", "2,4"]
    run = CliRunner().invoke(cli.app, ["replay", *args, "--processes", "1", "--html", str(html)])
    assert run.exit_code == 0, run.stderr
    command = [
        str(browser()),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=500",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1200,1600",
        "--enable-logging=stderr",
    ]
    shot = subprocess.run(
        [*command, f"--screenshot={picture}", html.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert picture.exists(), shot.stderr
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture.stat().st_size > 20_000
    # The page's own console is silent: nothing refused, nothing failed.
    assert "CONSOLE" not in shot.stderr
    dumped = subprocess.run(
        [*command, "--dump-dom", html.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    written = html.read_text(encoding="utf-8")
    for tag in ("<svg", "<figure", "<circle", "<rect", "<details", "<mark"):
        assert dumped.stdout.count(tag) == written.count(tag), tag
