"""Keeps finished responses across restarts of an engine, in a file that is written now and then."""

from __future__ import annotations

import logging
import threading

from ..drafters import DEFAULT_NAMESPACE, Drafter
from ..drafters.blend import BlendDrafter
from ..drafters.snapshot import SnapshotError, read_snapshot
from ..drafters.suffix import SuffixDrafter
from ..drafters.suffix.drafter import SNAPSHOT_KIND


def find_suffix_drafter(drafter: Drafter) -> SuffixDrafter | None:
    """Return the suffix drafter that a drafter is, or asks."""
    sources = drafter.sources if isinstance(drafter, BlendDrafter) else (drafter,)
    for source in sources:
        if isinstance(source, SuffixDrafter):
            return source
    return None


def pool_bytes(drafter: Drafter) -> int:
    """Return the bytes that the tokens of requests and finished responses take."""
    suffix = find_suffix_drafter(drafter)
    return 0 if suffix is None else suffix.num_bytes


class WarmFile:
    """The default namespace's finished responses in a file.

    Namespaces of adapters and salts are never written: who may read the file is not known.
    """

    def __init__(self, drafter: Drafter, path: str, vocab_size: int) -> None:
        """Name the file; nothing is read yet.

        Args:
            drafter: the suffix drafter, or a blend that asks one.
            path: the file; its folder must exist.
            vocab_size: a file with ids from it on is refused.

        Raises:
            ValueError: the drafter remembers no responses.
        """
        suffix = find_suffix_drafter(drafter)
        if suffix is None:
            raise ValueError(f"expected a drafter that asks the suffix drafter, got {drafter.name}")
        self._suffix = suffix
        self._path = path
        self._vocab_size = vocab_size
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._logger = logging.getLogger(__name__)

    def open(self, save_seconds: float, logger: logging.Logger) -> None:
        """Read the file, if there is one that can be used, and write it again now and then.

        A file that cannot be used is logged and left alone until the next write replaces it.
        """
        self._logger = logger
        try:
            logger.info("freedraft: %d tokens from %s", self._load(), self._path)
        except FileNotFoundError:
            logger.info("freedraft: %s does not exist yet", self._path)
        except (OSError, SnapshotError) as error:
            logger.warning("freedraft: starts without earlier responses: %s", error)
        self._thread = threading.Thread(
            target=self._run, args=(save_seconds,), name="freedraft-warm-file", daemon=True
        )
        self._thread.start()

    def save(self) -> None:
        """Write the file; a failure is logged."""
        try:
            self._suffix.save(DEFAULT_NAMESPACE, self._path)
        except OSError as error:
            self._logger.warning("freedraft: %s could not be written: %s", self._path, error)

    def close(self) -> None:
        """Write the file a last time and end the thread; a second call does nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self.save()

    def _load(self) -> int:
        tokens = read_snapshot(self._path, SNAPSHOT_KIND).arrays.get("tokens")
        if tokens is not None and tokens.size and int(tokens.max()) >= self._vocab_size:
            raise SnapshotError(
                f"expected token ids below the vocabulary size {self._vocab_size}, got "
                f"{int(tokens.max())}: {self._path}"
            )
        return self._suffix.load(self._path)

    def _run(self, save_seconds: float) -> None:
        while not self._closing.wait(save_seconds):
            self.save()
