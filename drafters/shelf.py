"""What a drafter keeps of each namespace, for a limited number of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shelf(Generic[T]):
    """One thing a namespace; the one not entered for longest makes room for a new one."""

    def __init__(self, make: Callable[[], T], max_namespaces: int) -> None:
        """Begin without any.

        Args:
            make: returns the thing of a new namespace.
            max_namespaces: how many are kept, at least 1.
        """
        self._make = make
        self._max_namespaces = max_namespaces
        self._things: OrderedDict[str, T] = OrderedDict()

    def __len__(self) -> int:
        """Return how many namespaces there are."""
        return len(self._things)

    def enter(self, namespace: str) -> T:
        """Return the namespace's thing, a new one if there is none.

        Who still holds what makes room goes on with it; nobody else finds it.
        """
        thing = self._things.get(namespace)
        if thing is None:
            while len(self._things) >= self._max_namespaces:
                self._things.popitem(last=False)
            thing = self._things[namespace] = self._make()
        self._things.move_to_end(namespace)
        return thing
