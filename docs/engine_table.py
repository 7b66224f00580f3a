"""Write the table of engines into README and docs/engines.md, from the adapters' own words.

python docs/engine_table.py           # write
python docs/engine_table.py --check   # exit with 1 where a page says something else
"""

from __future__ import annotations

import sys
from pathlib import Path

from freedraft.integrations.engine_support import markdown_table, supported_engines

ROOT = Path(__file__).parent.parent
PAGES = {"README.md": "docs/", "docs/engines.md": ""}
"""The pages with the table, and the way from each to the documentation."""

BEGIN = "<!-- engines: written by docs/engine_table.py -->\n"
END = "<!-- end of engines -->\n"


def with_table(text: str, docs: str) -> str:
    """Return a page with the table between its two marks.

    Raises:
        ValueError: a mark is missing.
    """
    if BEGIN not in text or END not in text:
        raise ValueError(f"expected the marks {BEGIN.strip()} and {END.strip()}")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}{markdown_table(supported_engines(), docs)}{END}{after}"


def main() -> None:
    """Write the pages, or check them."""
    outdated = []
    for name, docs in PAGES.items():
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        wanted = with_table(text, docs)
        if text != wanted:
            outdated.append(name)
            if "--check" not in sys.argv[1:]:
                path.write_text(wanted, encoding="utf-8")
    if outdated and "--check" in sys.argv[1:]:
        sys.exit(f"expected the adapters' own table in {', '.join(outdated)}: run {__file__}")


if __name__ == "__main__":
    main()
