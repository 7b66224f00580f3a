"""The edit drafter once more, in plain Python: lists, scans and no index of any kind."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from freedraft.drafters.edit import _align_kernels as align
from freedraft.drafters.edit import _source_kernels as source
from freedraft.drafters.edit import _substitute_kernels as substitute_kernels
from freedraft.drafters.edit import _tree_kernels as tree_kernels
from freedraft.drafters.tree import CandidateTree


def agreement(tokens: list[int], one: int, other: int) -> int:
    """Return how many tokens before two places are equal and not negative, at most MAX_MATCH."""
    length = 0
    while (
        length < min(align.MAX_MATCH, one, other)
        and tokens[one - 1 - length] == tokens[other - 1 - length] >= 0
    ):
        length += 1
    return length


@dataclass
class Alignment:
    """One stretch that the output follows."""

    position: int | None
    run: int
    touched: int
    anchor: int | None = None
    gap: int = 0
    copied: int = 0


@dataclass(frozen=True)
class Edit:
    """What was replaced by what, as stretches of the text."""

    start: int
    stop: int
    new_start: int
    new_stop: int
    times: int


@dataclass(frozen=True)
class Source:
    """A place that the output may copy from, with all that moves as it is followed."""

    place: int
    kind: int
    agreed: int
    jump_at: int
    jump_to: int

    def following(self) -> Source:
        """Return the source one token later."""
        place = self.place + 1
        return replace(
            self,
            place=self.jump_to if place == self.jump_at else place,
            kind=source.COPY_SIDE if self.kind >= source.SUBSTITUTE else self.kind,
            agreed=min(self.agreed + 1, align.MAX_MATCH),
        )


class EditOracle:
    """One request."""

    def __init__(self, prompt: list[int], counts: np.ndarray) -> None:
        """Begin with a prompt and the counts of a fresh drafter."""
        self.tokens = list(prompt)
        self.prompt_length = len(prompt)
        self.rows: list[Alignment | None] = [None] * align.NUM_ALIGNMENTS
        self.edits: list[Edit] = []
        self.counts = counts.copy()

    # -- committed tokens

    def extend(self, tokens: list[int]) -> None:
        """Append tokens one by one."""
        for token in tokens:
            self.tokens.append(token)
            for row, alignment in enumerate(self.rows):
                if alignment is not None and not self._follow(alignment):
                    self.rows[row] = None
            self._drop_twins()
            self._begin()

    def truncate(self, length: int) -> None:
        """Forget the end of the text."""
        removed = len(self.tokens) - length
        if removed <= 0:
            return
        del self.tokens[length:]
        self.prompt_length = min(self.prompt_length, length)
        self.edits = []
        for row, alignment in enumerate(self.rows):
            if alignment is None:
                continue
            if alignment.anchor is None and alignment.run > removed:
                assert alignment.position is not None
                alignment.position -= removed
                alignment.run -= removed
                alignment.touched = length
            else:
                self.rows[row] = None

    def _follow(self, alignment: Alignment) -> bool:
        length, last = len(self.tokens), self.tokens[-1]
        position = alignment.position
        if position is not None and self.tokens[position] == last >= 0:
            alignment.position = position + 1
            alignment.run += 1
            alignment.copied += 1
            alignment.touched = length
            alignment.gap += alignment.anchor is not None
        else:
            if alignment.anchor is None:
                alignment.anchor = position
            alignment.gap += 1
            alignment.position, alignment.run = None, 0
            if alignment.gap > align.MIN_PATIENCE + alignment.copied:
                return False
            self._resume(alignment)
        if alignment.anchor is not None and alignment.run >= align.TRUSTED_RUN:
            self._remember(alignment)
        return True

    def _resume(self, alignment: Alignment) -> None:
        anchor = alignment.anchor
        assert anchor is not None
        window = min(align.MAX_WINDOW, align.MIN_PATIENCE + alignment.copied)
        ranked = [
            (64 * run - (place - anchor), -place, run)
            for place in range(max(anchor, 1), min(anchor + window, len(self.tokens)))
            if (run := agreement(self.tokens, place, len(self.tokens))) >= align.MIN_RESUME
        ]
        if ranked and max(ranked)[0] > 0:
            _, place, alignment.run = max(ranked)
            alignment.position = -place

    def _remember(self, alignment: Alignment) -> None:
        length = len(self.tokens)
        assert alignment.anchor is not None and alignment.position is not None
        start, stop = alignment.anchor, alignment.position - alignment.run
        new_start, new_stop = length - alignment.gap, length - alignment.run
        shift = max(start - stop, 0)
        stop, new_stop = stop + shift, new_stop + shift
        shift = max(new_start - new_stop, 0)
        stop, new_stop = stop + shift, new_stop + shift
        alignment.anchor, alignment.gap = None, 0
        sizes = (stop - start, new_stop - new_start)
        if sum(sizes) > 0 and sizes[0] <= align.MAX_REPLACED and sizes[1] <= align.MAX_REPLACEMENT:
            same = (self.tokens[start:stop], self.tokens[new_start:new_stop])
            earlier = [
                one.times + 1
                for one in self.edits[-align.MAX_EDITS :]
                if same == (self.tokens[one.start : one.stop], self.replacement(one))
            ]
            self.edits.append(Edit(start, stop, new_start, new_stop, max(earlier, default=0)))

    def replacement(self, edit: Edit) -> list[int]:
        """Return the tokens that an edit put in."""
        return self.tokens[edit.new_start : edit.new_stop]

    def _drop_twins(self) -> None:
        for row, alignment in enumerate(self.rows):
            for other, twin in enumerate(self.rows):
                if row != other and alignment is not None and twin is not None:
                    met = alignment.position is not None and alignment.position == twin.position
                    if met and alignment.copied >= twin.copied:
                        self.rows[other] = None

    def _begin(self) -> None:
        places = self._places(align.LEVELS[0], len(self.tokens))
        run = agreement(self.tokens, places[0], len(self.tokens)) if places else 0
        if run < align.MIN_START:
            return
        if any(row is not None and row.position == places[0] for row in self.rows):
            return
        copied = [-1 if row is None else row.copied for row in self.rows]
        touched = [-1 if row is None else row.touched for row in self.rows]
        most = copied.index(max(copied))
        open_rows = [row for row in range(len(copied)) if row != most or copied[row] < 0]
        victim = min(open_rows, key=lambda row: (touched[row], row))
        self.rows[victim] = Alignment(places[0], run, len(self.tokens))

    def _places(self, length: int, stop: int) -> list[int]:
        """Return the ends of the earlier places of the k-gram before ``stop``, newest first."""
        gram = self.tokens[stop - length : stop]
        if len(gram) < length or stop < length or min(gram) < 0:
            return []
        return [
            end
            for end in range(stop - 1, length - 1, -1)
            if self.tokens[end - length : end] == gram
        ]

    # -- sources

    def sources(self) -> list[Source]:
        """Return where the output may go on, the edits that it has begun again included."""
        found: list[Source] = []
        sure = [
            row
            for row in self.rows
            if row is not None
            and row.anchor is None
            and row.position is not None
            and row.run >= source.SURE_RUN
        ]
        if sure:
            self._add_alignment(found, max(sure, key=lambda row: row.run))
        elif self.tokens:
            for row in self.rows:
                if row is not None:
                    self._add_alignment(found, row)
            self._add_earlier(found)
            if any(row is not None for row in self.rows):
                self._add_fillers(found)
        begun: list[Source] = []
        if found:  # no edit is drafted where nothing else is
            for row in self.rows:
                if row is not None and row.anchor is not None:
                    begun += self.substitutes(row.anchor, row.gap, [], False)
        return found + begun

    def _add(self, found: list[Source], place: int, kind: int, agreed: int) -> None:
        length = len(self.tokens)
        known = any(other.place == place for other in found)
        if not known and place < length and self.tokens[place] >= 0:
            found.append(Source(place, kind, agreed, length, place))

    def _add_alignment(self, found: list[Source], row: Alignment) -> None:
        length = len(self.tokens)
        side = row.copied < source.MAIN_COPIED
        if row.position is not None:
            kind = source.COPY_SIDE if side else source.COPY_MAIN
            self._add(found, row.position, kind, min(row.run, align.MAX_MATCH))
        if row.anchor is None:
            return
        long = source.INSERTED_LONG if row.gap >= source.LONG_GAP else source.INSERTED_MAIN
        kind = source.INSERTED_SIDE if side else long
        self._add(found, row.anchor, kind, agreement(self.tokens, row.anchor, length))
        if row.gap <= (source.MAX_REPLACED_SIDE if side else source.MAX_REPLACED_MAIN):
            place = row.anchor + row.gap
            kind = source.REPLACED_SIDE if side else source.REPLACED_MAIN
            self._add(found, place, kind, agreement(self.tokens, place, length))
        if side:
            return
        ahead = [
            place
            for place in range(row.anchor + 1, min(row.anchor + align.MAX_WINDOW, length))
            if self.tokens[place - 1] == self.tokens[-1]
        ]
        for rank, place in enumerate(ahead[: source.MAX_AHEAD]):
            kind = source.DELETED_FURTHER if rank else source.DELETED
            self._add(found, place, kind, agreement(self.tokens, place, length))

    def _add_earlier(self, found: list[Source]) -> None:
        length = len(self.tokens)
        for size in align.LEVELS:
            for place in self._places(size, length)[: source.MAX_VISITS]:
                if len(found) < source.MAX_PLACES:
                    kind = source.IN_PROMPT if place < self.prompt_length else source.IN_OUTPUT
                    self._add(found, place, kind, agreement(self.tokens, place, length))
            if len(found) >= source.ENOUGH_SOURCES:
                break

    def _add_fillers(self, found: list[Source]) -> None:
        length = len(self.tokens)
        for size in align.LEVELS:
            for place in self._places(size, length - 1)[: source.MAX_BUT_LAST]:
                if len(found) < source.MAX_PLACES:
                    agreed = agreement(self.tokens, place, length - 1)
                    self._add(found, place + 1, source.BUT_LAST, agreed)
        for back in range(min(source.NUM_RECENT, length)):
            self._add(found, length - 1 - back, source.RECENT, 0)

    # -- edits made again

    def substitutes(self, place: int, begun: int, known: list[Source], sure: bool) -> list[Source]:
        """Return the newest edit that fits at ``place``, as a source, unless it is known."""
        length = len(self.tokens)
        for edit in self.edits[::-1][: align.MAX_EDITS]:
            size = edit.stop - edit.start
            replacement = self.replacement(edit)
            context = min(agreement(self.tokens, place, edit.start), align.MAX_MATCH - size)
            written = self.tokens[length - begun :] if begun else []
            if (
                place == edit.start
                or place + size >= length
                or self.tokens[place : place + size] != self.tokens[edit.start : edit.stop]
                or context < 1
                or context + size < substitute_kernels.MIN_CONTEXT
                or replacement[:begun] != written
            ):
                continue
            target = place + size
            begin = edit.new_start + begun if begun < len(replacement) else target
            strength = context + size + begun + substitute_kernels.REPEAT * edit.times
            agreed = min(strength, align.MAX_MATCH)
            kind = source.SURE_SUBSTITUTE if sure else source.SUBSTITUTE
            added = Source(begin, kind, agreed, edit.new_stop, target)
            twin = any(
                other.kind >= source.SUBSTITUTE and (other.place, other.jump_to) == (begin, target)
                for other in known
            )
            return [] if twin else [added]
        return []

    # -- the tree

    def branch(self, live: list[Source], at_root: bool) -> tuple[list[Source], list[int]]:
        """Return a node's sources and the edits that fit there, and how much speaks for those.

        The second list has for each source the agreement of the edit it competes with, or 0.
        """
        begun = live if at_root else []
        added: list[Source] = []
        contested: list[int] = []
        for one in live:
            fits = one.kind < source.SUBSTITUTE and one.agreed >= align.MIN_RESUME
            found = (
                self.substitutes(one.place, 0, [*begun, *added], one.agreed >= source.SURE_AGREED)
                if fits and one.place < len(self.tokens)
                else []
            )
            added += found
            contested.append(found[0].agreed if found else 0)
        return [*live, *added], [*contested, *([0] * len(added))]

    def count(self, one: Source, rival: int) -> np.ndarray:
        """Return the hits and trials that a source is judged by, a view."""
        if rival:
            sure = one.agreed >= source.SURE_AGREED
            kind = source.SURE_CONTESTED if sure else source.CONTESTED
            return self.counts[kind, source.BUCKET_OF[rival]]
        return self.counts[one.kind, source.BUCKET_OF[one.agreed]]

    def children(self, live: list[Source], at_root: bool) -> dict[int, tuple[float, list[Source]]]:
        """Return the share of each next token of a node, and the sources that go on with it."""
        live, contested = self.branch(live, at_root)
        odds: dict[int, list[float]] = {}
        after: dict[int, list[Source]] = {}
        for one, rival in zip(live, contested, strict=True):
            if one.place >= len(self.tokens) or self.tokens[one.place] < 0:
                continue
            hits, trials = self.count(one, rival)
            share = min(max(hits / trials, tree_kernels.LEAST_SHARE), tree_kernels.LARGEST_SHARE)
            token = self.tokens[one.place]
            odds.setdefault(token, []).append(share / (1 - share))
            after.setdefault(token, []).append(one.following())
        merged = {
            token: max(row) + tree_kernels.SECOND_VOICE * (sum(row) - max(row))
            for token, row in odds.items()
        }
        total = sum(merged.values())
        rivals = sum(value**tree_kernels.RIVALRY for value in merged.values())
        return {
            token: (total / (1 + total) * value**tree_kernels.RIVALRY / rivals, after[token])
            for token, value in merged.items()
        }

    def learn(self, tree: CandidateTree, max_nodes: int, max_depth: int, new: list[int]) -> None:
        """Count what the tokens ``new`` that came after a proposal say about its sources."""
        live, contested = self.branch(self.sources(), True)
        children = tree.children()
        node, expanded = -1, True
        for depth, token in enumerate(new[: source.MAX_LESSON]):
            right: list[Source] = []
            for one, rival in zip(live, contested, strict=True):
                if one.place >= len(self.tokens) or self.tokens[one.place] < 0:
                    continue
                count = self.count(one, rival)
                if count[1] >= source.MEMORY:
                    count *= 0.5
                hit = self.tokens[one.place] == token
                count += (hit, 1)
                if hit:
                    right.append(one.following())
            node = children.get(node, {}).get(token, -2) if expanded else -2
            # the last node of a full tree and those of the largest depth were not looked behind
            expanded = node >= 0 and node < max_nodes - 1 and depth + 1 < max_depth
            live, contested = self.branch(right, False) if expanded else (right, [0] * len(right))
