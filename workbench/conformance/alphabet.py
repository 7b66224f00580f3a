"""The characters that are tokens of the tiny model and of the toy engine, and their context."""

from __future__ import annotations

import string

CHARACTERS = string.ascii_lowercase + string.digits + " .,:;!?()[]{}\"'-+*/=\n"
"""The character at place i is token i + 1; token 0 is the end."""
MAX_CONTEXT = 384
