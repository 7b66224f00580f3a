"""Sample with a seed: the same tokens with any drafter and with none.

    python examples/sampling_with_seed.py
    python examples/sampling_with_seed.py --seed 3 --temperature 1.2

The noise behind each choice depends on the seed, the position and the token alone, so it does not
matter how many tokens a step brings. What is left is rounding: in float32 a forward of several
tokens differs in the last bits from forwards of one, which can tip a choice that hangs by a hair.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import freedraft

REQUEST = """\
Write five short product descriptions, one for each line, and begin each with its name.

Harbour lamp, brass, 40 watts, 89 euros
Harbour lamp, steel, 40 watts, 69 euros
Garden lamp, brass, 25 watts, 59 euros
Garden lamp, steel, 25 watts, 49 euros
Desk lamp, brass, 15 watts, 39 euros"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, sample without a drafter and with each, compare."""
    parser = argparse.ArgumentParser(description="Sample with and without speculation.")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    options = parser.parse_args(arguments)

    model, tokenizer = freedraft.load_default_model()
    turn = [{"role": "user", "content": REQUEST}]
    text = str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))
    # The template has written the special tokens already.
    prompt = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    expected: list[int] = []
    for drafter in ("none", "ngram", "suffix"):
        result = freedraft.generate(
            model,
            prompt["input_ids"],
            tokenizer=tokenizer,
            drafter=drafter,
            seed=options.seed,
            do_sample=True,
            temperature=options.temperature,
            top_p=0.95,
            max_new_tokens=options.max_new_tokens,
            return_dict=True,
        )
        assert isinstance(result, freedraft.GenerationResult)  # asked for with return_dict
        assert result.texts is not None  # a tokenizer was given
        token_ids = result.token_ids[0]
        if drafter == "none":
            expected = token_ids
            print(result.texts[0], end="\n\n")
        counts = result.statistics
        print(
            f"{drafter:>6}: {counts.emitted} tokens in {counts.steps} steps, "
            f"{counts.accepted} of {counts.drafted} drafted tokens accepted, "
            f"same tokens: {'yes' if token_ids == expected else 'no'}"
        )


if __name__ == "__main__":
    main()
