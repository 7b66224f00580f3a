"""Answer questions from a text, all in one batch: answers that quote are drafted from the prompt.

    python examples/rag_answer.py
    python examples/rag_answer.py --question "When is it closed?" --question "Who may print?"

Without a question two are asked. Batches of any size work, and each row drafts for itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import freedraft

PASSAGES = (
    "Opening hours. The workshop is open on Tuesday from 16 to 20 o'clock and on Saturday from 10 "
    "to 14 o'clock. It is closed in August and on public holidays.",
    "Machines. The lathe and the milling machine may be used only after a course, which takes "
    "place on the first Saturday of each month. The 3D printers may be used by all members.",
    "Costs. Membership costs 15 euros a month, for students 8 euros. Wood and metal are sold at "
    "their purchase price and must be paid for at the counter before you leave.",
)
TASK = "Answer the question by quoting the relevant sentences from the text."
QUESTIONS = ("When is the workshop open?", "What does membership cost?")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, answer all questions at once, print."""
    parser = argparse.ArgumentParser(description="Answer questions from a text by quoting it.")
    parser.add_argument("--question", action="append", help="may be repeated")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    options = parser.parse_args(arguments)
    questions = options.question or QUESTIONS

    model, tokenizer = freedraft.load_default_model()
    context = "\n\n".join(PASSAGES)
    texts = []
    for question in questions:
        request = f"{TASK}\n\n{context}\n\nQuestion: {question}"
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
