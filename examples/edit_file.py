"""Edit a file: the answer repeats most of the prompt, so most of it is drafted.

    python examples/edit_file.py
    python examples/edit_file.py notes.md --task "Change the date to Sunday. Return all of it."

The answer goes to the output, the statistics beside it. The default model is small: watch its
speed, not its wit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import freedraft

SAMPLE = """\
Dear neighbours,

the sumer party takes place on Saturday, 14 June, in the yard behind house number 12. We begin
at four in the afternoon with cofee and cake, and light the grill at six.

Please bring plates, cutlery and something to sit on. Drinks are bought together; the box for
mony stands beside the fridge. If it rains, we meet in the cellar of house number 10.

Last year some bicicles were in the way. Please put yours behind the shed until Sunday.

Kind regards
the house committee
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, generate, print."""
    parser = argparse.ArgumentParser(description="Edit a file with the default model.")
    parser.add_argument("file", nargs="?", type=Path, help="a text file; a sample when absent")
    parser.add_argument("--task", default="Correct the spelling and return the complete text.")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    options = parser.parse_args(arguments)
    source = SAMPLE if options.file is None else options.file.read_text(encoding="utf-8")

    model, tokenizer = freedraft.load_default_model()
    request = f"{options.task}\n\n{source}"
    turn = [{"role": "user", "content": request}]
    text = str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))
    # The template has written the special tokens already.
    prompt = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    result = freedraft.generate(
        model,
        prompt["input_ids"],
        tokenizer=tokenizer,
        max_new_tokens=options.max_new_tokens,
        return_dict=True,
    )
    assert isinstance(result, freedraft.GenerationResult)  # asked for with return_dict
    assert result.texts is not None  # a tokenizer was given

    print(result.texts[0])
    counts = result.statistics
    print(
        f"{counts.emitted} tokens in {counts.steps} steps: {counts.tokens_per_step:.2f} a step, "
        f"{counts.tokens_per_second:.1f} a second, {counts.acceptance_rate:.0%} of "
        f"{counts.drafted} drafted tokens accepted",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
