"""A drafter of your own: propose what followed the last two tokens the last time they stood there.

    python examples/own_drafter.py

A drafter can be as simple or as odd as you like: the text stays the model's own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import freedraft
from freedraft import CandidateTree, Feedback
from freedraft.drafters import RequestId

LIST = """\
flour from the mill in Oldham, two bags
eggs from the farm behind the church, two dozen
butter from the farm behind the church, one pound
sugar from the shop at the station, two bags
salt from the shop at the station, one bag"""


class LastPlaceDrafter:
    """Remembers for each pair of tokens the last place behind it, and copies from there."""

    name = "last-place"

    def __init__(self) -> None:
        self._texts: dict[RequestId, list[int]] = {}
        self._places: dict[RequestId, dict[tuple[int, ...], int]] = {}

    def start(self, request_id: RequestId, prompt_ids: npt.ArrayLike, namespace: str = "") -> None:
        self._texts[request_id], self._places[request_id] = [], {}
        self.extend(request_id, prompt_ids)

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        text, places = self._texts.get(request_id, []), self._places.get(request_id, {})
        for token in np.asarray(token_ids).tolist():
            places[tuple(text[-2:])] = len(text)  # the pair before this token: it follows there
            text.append(token)

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        return [self._tree(request_id, min(max_nodes, max_depth)) for request_id in request_ids]

    def _tree(self, request_id: RequestId, length: int) -> CandidateTree:
        text = self._texts.get(request_id, [])
        place = self._places.get(request_id, {}).get(tuple(text[-2:]), len(text))
        chain = text[place : place + length]  # nothing where the pair is new
        # The cost gate weighs the probability of each path: here 0.8 for each further token.
        return CandidateTree.from_chain(chain, 0.8 ** np.arange(1, len(chain) + 1))

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        pass  # the place to learn from what the model said at each node

    def truncate(self, request_id: RequestId, length: int) -> None:
        if request_id in self._texts:
            self.start(request_id, self._texts[request_id][:length])

    def stop(self, request_id: RequestId) -> None:
        self._texts.pop(request_id, None)
        self._places.pop(request_id, None)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, generate without and with the drafter, compare."""
    parser = argparse.ArgumentParser(description="Generate with a drafter of this file.")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    options = parser.parse_args(arguments)

    model, tokenizer = freedraft.load_default_model()
    request = f"Copy this list and write a number before each line.\n\n{LIST}"
    turn = [{"role": "user", "content": request}]
    text = str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))
    # The template has written the special tokens already.
    prompt = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    for drafter in (None, LastPlaceDrafter()):
        result = freedraft.generate(
            model,
            prompt["input_ids"],
            tokenizer=tokenizer,
            drafter=drafter,
            max_new_tokens=options.max_new_tokens,
            return_dict=True,
        )
        assert isinstance(result, freedraft.GenerationResult)  # asked for with return_dict
        assert result.texts is not None  # a tokenizer was given
        counts = result.statistics
        print(f"--- {'no drafter' if drafter is None else drafter.name}\n{result.texts[0]}")
        print(
            f"{counts.emitted} tokens in {counts.steps} steps, "
            f"{counts.accepted} of {counts.drafted} drafted tokens accepted"
        )


if __name__ == "__main__":
    main()
