"""Chat over several turns with one drafter, which knows more of the conversation at each turn.

    python examples/chat.py
    python examples/chat.py --say "Name three rivers." --say "Put them in a table."

Without ``--say`` you type; an empty line ends.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from transformers import TextStreamer

import freedraft


def turns(said: Sequence[str] | None) -> Iterator[str]:
    """Yield what the user says: the given lines, or typed ones up to an empty line."""
    if said is not None:
        yield from said
        return
    try:
        while line := input("you> ").strip():
            yield line
    except EOFError:
        return


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, then talk."""
    parser = argparse.ArgumentParser(description="Chat with the default model.")
    parser.add_argument("--say", action="append", help="a turn, instead of typing; repeatable")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    options = parser.parse_args(arguments)

    model, tokenizer = freedraft.load_default_model()
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    # One drafter for all turns. Requests of one namespace learn from each other: use one for each
    # user, and what one of them has said is never proposed to another.
    drafter = freedraft.create_drafter("suffix")
    messages: list[dict[str, str]] = []
    for line in turns(options.say):
        messages.append({"role": "user", "content": line})
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        # The template has written the special tokens already.
        prompt = tokenizer(str(text), add_special_tokens=False, return_tensors="pt")
        result = freedraft.generate(
            model,
            prompt["input_ids"],
            tokenizer=tokenizer,
            drafter=drafter,
            namespace="user-1",
            streamer=streamer,
            max_new_tokens=options.max_new_tokens,
            return_dict=True,
        )
        assert isinstance(result, freedraft.GenerationResult)  # asked for with return_dict
        assert result.texts is not None  # a tokenizer was given
        messages.append({"role": "assistant", "content": result.texts[0]})
        counts = result.statistics
        print(
            f"[{counts.emitted} tokens, {counts.tokens_per_step:.2f} a step, "
            f"{counts.accepted} of {counts.drafted} drafted tokens accepted]"
        )


if __name__ == "__main__":
    main()
