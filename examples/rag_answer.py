"""Answer questions from a text, all in one batch: answers that quote are drafted from the prompt.

    python examples/rag_answer.py
    python examples/rag_answer.py --question "How old is the bridge?" --question "Who paid?"

Without a question two are asked. Batches of any size work, and each row drafts for itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import freedraft
from freedraft.integrations.default_model import load_default_model

PASSAGES = (
    "The Arlen footbridge was opened in May 1908. It is 61 metres long and was paid for by the "
    "owners of the two paper mills, whose workers had crossed the river by boat until then.",
    "In the flood of 1954 the middle pier sank by 40 centimetres. The bridge was closed for two "
    "years and rebuilt with a steel truss that rests on the two outer piers only.",
    "Since 1999 the bridge has been a listed monument. Cyclists must dismount, and no more than "
    "60 people may stand on it at the same time.",
)
QUESTIONS = ("Who paid for the bridge, and when was it opened?", "What happened in 1954?")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, answer all questions at once, print."""
    parser = argparse.ArgumentParser(description="Answer questions from a text by quoting it.")
    parser.add_argument("--question", action="append", help="may be repeated")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    options = parser.parse_args(arguments)
    questions = options.question or QUESTIONS

    model, tokenizer = load_default_model()
    context = "\n\n".join(PASSAGES)
    texts = []
    for question in questions:
        request = f"Answer by quoting from the text.\n\n{context}\n\nQuestion: {question}"
        turn = [{"role": "user", "content": request}]
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        texts.append(str(text))
    # Prompts of different lengths make one batch, with padding on the left. The template has
    # written the special tokens already.
    prompts = tokenizer(
        texts, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt"
    )
    result = freedraft.generate(
        model,
        prompts["input_ids"],
        attention_mask=prompts["attention_mask"],
        tokenizer=tokenizer,
        max_new_tokens=options.max_new_tokens,
        return_dict=True,
    )
    assert isinstance(result, freedraft.GenerationResult)  # asked for with return_dict
    assert result.texts is not None  # a tokenizer was given

    for question, text, reason in zip(questions, result.texts, result.finish_reasons, strict=True):
        print(f"Q: {question}\nA: {text} [ended by {reason}]\n")
    counts = result.statistics
    print(
        f"{counts.emitted} tokens in {counts.steps} steps, each row's counted: "
        f"{counts.tokens_per_step:.2f} a step, {counts.tokens_per_second:.1f} a second, "
        f"{counts.acceptance_rate:.0%} of {counts.drafted} drafted tokens accepted"
    )


if __name__ == "__main__":
    main()
