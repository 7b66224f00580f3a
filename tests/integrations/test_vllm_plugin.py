"""The entry point wraps what it knows, once, and leaves the rest alone."""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from freedraft.integrations.vllm_plugin import pass_salts_on, register
from freedraft.integrations.vllm_rows import SALT_ATTRIBUTE


def install_stub(monkeypatch: pytest.MonkeyPatch, new_request_data: Any) -> None:
    """Put the modules of vLLM that the entry point imports into this process."""
    for name in ("vllm", "vllm.config", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched"):
        module = ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    output = ModuleType("vllm.v1.core.sched.output")
    output.NewRequestData = new_request_data  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, output.__name__, output)


def make_class() -> Any:
    class NewRequestData:
        calls = 0

        @classmethod
        def from_request(cls, request: Any, block_ids: Any, extra: int = 0) -> Any:
            cls.calls += 1
            data = cls()
            data.seen = (request.request_id, block_ids, extra)  # type: ignore[attr-defined]
            return data

    return NewRequestData


def test_new_requests_carry_their_salt_however_often_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new_request_data = make_class()
    install_stub(monkeypatch, new_request_data)
    for _ in range(3):
        register()
    salted = SimpleNamespace(request_id="a", cache_salt="x")
    data = new_request_data.from_request(salted, (1,), extra=2)
    assert data.seen == ("a", (1,), 2)
    assert getattr(data, SALT_ATTRIBUTE) == "x"
    assert new_request_data.calls == 1
    plain = SimpleNamespace(request_id="b", cache_salt=None)
    assert getattr(new_request_data.from_request(plain, ()), SALT_ATTRIBUTE) is None


def test_a_foreign_signature_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class NewRequestData:
        @staticmethod
        def from_request(thing: object) -> object:
            return thing

    install_stub(monkeypatch, NewRequestData)
    with caplog.at_level(logging.WARNING, "vllm.freedraft"):
        pass_salts_on()
    assert "salts stay unknown" in caplog.text
    assert NewRequestData.from_request(5) == 5


def test_a_process_without_a_scheduler_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "vllm.config", raising=False)
    monkeypatch.setitem(sys.modules, "vllm", None)  # an import would raise
    pass_salts_on()
