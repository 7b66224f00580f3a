"""What does the demo look like? Runs ``freedraft demo`` and draws its output: docs/images/demo.svg.

    python benchmarks/terminal_picture.py --only code2 --rounds 3

All arguments are the demo's. The picture is of that run, colours included; nothing is retouched.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

WIDTH = 100
TARGET = Path(__file__).resolve().parents[1] / "docs" / "images" / "demo.svg"


def run_demo(arguments: list[str]) -> str:
    """Return the demo's output with its colours, as a terminal of ``WIDTH`` columns shows it."""
    command = [sys.executable, "-c", "from freedraft.cli import main; main()", "demo", *arguments]
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, check=True, encoding="utf-8"
    )
    return done.stdout


def draw(command: str, output: str) -> str:
    """Return an SVG of a terminal that shows a command and its output."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    console.print(Text.from_ansi(output.rstrip()))
    svg = console.export_svg(title="freedraft demo", theme=MONOKAI)
    # No fonts from elsewhere: a picture in a README must not load anything.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def main() -> None:
    """Run the demo with this script's arguments and write the picture."""
    arguments = sys.argv[1:]
    output = run_demo(arguments)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(draw(" ".join(["freedraft demo", *arguments]), output), encoding="utf-8")
    print(f"docs/images/{TARGET.name}: {len(output.splitlines())} lines")


if __name__ == "__main__":
    main()
