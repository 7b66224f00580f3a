"""Makes drafters of models of transformers: a second model, or the target with layers left out."""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..drafters.draft_model import DraftModelDrafter, VocabularyMap
from ..drafters.model_drafting import ModelDraftConfig
from ..verifier import TreeForward
from ..verifier.model_support import plan_masks
from ..verifier.tree_growth import TreeGrowth


def draft_model_drafter(
    draft_model: PreTrainedModel,
    target: PreTrainedModel,
    *,
    draft_tokenizer: PreTrainedTokenizerBase | None = None,
    target_tokenizer: PreTrainedTokenizerBase | None = None,
    vocabulary: VocabularyMap | None = None,
    config: ModelDraftConfig | None = None,
) -> DraftModelDrafter:
    """Return a drafter that drafts for ``target`` with a second, smaller model.

    The two must speak of the same tokens. That is shown by their tokenizers, when these are the
    same, or by an explicit map; it is never guessed.

    Args:
        draft_model: a decoder-only model, in evaluation mode.
        target: the model that the drafts are for.
        draft_tokenizer: of the draft model.
        target_tokenizer: of the target.
        vocabulary: for other tokenizers, which id means which; instead of the tokenizers.
        config: how it drafts; the defaults when absent.

    Raises:
        ValueError: a model that cannot grow trees, other tokenizers, a map of other sizes, or
            neither tokenizers nor a map.
    """
    plan_masks(draft_model)
    sizes = [
        int(model.config.get_text_config(decoder=True).vocab_size)
        for model in (target, draft_model)
    ]
    if vocabulary is None:
        vocabulary = _same_vocabulary(target_tokenizer, draft_tokenizer, sizes)
    elif [vocabulary.target_size, vocabulary.draft_size] != sizes:
        raise ValueError(
            f"expected a map from {sizes[0]} ids of the target to {sizes[1]} of the draft model, "
            f"got one from {vocabulary.target_size} to {vocabulary.draft_size}"
        )
    return DraftModelDrafter(
        lambda: TreeGrowth(draft_model, TreeForward(draft_model)), vocabulary, config
    )


def _same_vocabulary(
    target: PreTrainedTokenizerBase | None,
    draft: PreTrainedTokenizerBase | None,
    sizes: list[int],
) -> VocabularyMap:
    if target is None or draft is None:
        raise ValueError(
            "expected both models' tokenizers, to see that they are the same, or a vocabulary "
            "map, got neither"
        )
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours != theirs:
        common = sum(theirs.get(token) == index for token, index in ours.items())
        raise ValueError(
            f"expected one tokenizer for both models, got {len(ours)} and {len(theirs)} tokens, "
            f"{common} of them with the same id: pass vocabulary=VocabularyMap.from_tokenizers(...)"
        )
    return VocabularyMap.identity(sizes[0], sizes[1])
