"""The readers of logs: every format's own form, and what is broken named by file and line."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freedraft.workbench.logs import LogError, LogReader, LogRequest, Message
from freedraft.workbench.logs.lines import read_lines
from freedraft.workbench.logs.literals import fields_until
from freedraft.workbench.logs.reader import LogPosition

PAIR = {"prompt": "p", "response": "r"}


def write(path: Path, *records: object) -> Path:
    """Write one record a line; texts and bytes as they are."""
    lines = [
        record
        if isinstance(record, bytes)
        else (record if isinstance(record, str) else json.dumps(record)).encode()
        for record in records
    ]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def read(tmp_path: Path, *records: object, log_format: str = "auto") -> list[LogRequest]:
    return list(LogReader(write(tmp_path / "log.jsonl", *records), log_format))


def one(tmp_path: Path, *records: object, log_format: str = "auto") -> LogRequest:
    (request,) = read(tmp_path, *records, log_format=log_format)
    return request


def fail(tmp_path: Path, *records: object, log_format: str = "auto") -> str:
    with pytest.raises(LogError) as caught:
        read(tmp_path, *records, log_format=log_format)
    return str(caught.value)


# -- prompts and responses


def test_pairs_of_text_and_of_ids(tmp_path: Path) -> None:
    text, ids = read(
        tmp_path,
        {
            "prompt": "a",
            "response": "b\u2028c",
            "workload": "w",
            "session": 7,
            "namespace": "n",
            "arrival": 1_700_000_000_250,
            "finish": "2023-11-14T22:13:21Z",
        },
        {"prompt_ids": [1, 2], "response_token_ids": [3], "logprobs": [-0.5]},
    )
    assert (text.prompt, text.response, text.workload) == ("a", "b\u2028c", "w")
    assert (text.session, text.namespace) == ("7", "n")
    assert (text.arrival, text.finish) == (1_700_000_000.25, 1_700_000_001.0)
    assert text.place.endswith("log.jsonl:1")
    assert isinstance(ids.prompt, np.ndarray) and ids.prompt.tolist() == [1, 2]
    assert isinstance(ids.response, np.ndarray) and ids.response.dtype == np.int32
    assert ids.logprobs == ((("", -0.5),),)


@pytest.mark.parametrize("scale", [1, 1e3, 1e6, 1e9])
def test_times_of_any_unit(tmp_path: Path, scale: float) -> None:
    assert one(tmp_path, PAIR | {"timestamp": 1.7e9 * scale}).arrival == 1.7e9


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "log.jsonl:2: expected one JSON object, got text that is not JSON"),
        ('{"prompt": "p", "respon', "the line seems cut off"),
        ([1], "log.jsonl:2: expected a JSON object, got an array"),
        ({"prompt": "p"}, "log.jsonl:2: expected the key \"response\", got the keys ['prompt']"),
        (PAIR | {"response": 3}, 'expected text for "response", got a number'),
        (PAIR | {"response": ""}, "log.jsonl:2: expected a response, got an empty one"),
        (PAIR | {"response_ids": []}, "expected a response, got an empty one"),
        (PAIR | {"prompt_ids": [1.5]}, 'expected an array of token ids for "prompt_ids"'),
        (PAIR | {"prompt_ids": [1 << 40]}, '"prompt_ids": expected token ids within int32'),
        (PAIR | {"session": {}}, 'expected text for "session", got an object'),
        (PAIR | {"arrival": "soon"}, 'expected a time for "arrival", got text'),
        (PAIR | {"logprobs": [0.5]}, 'expected a number <= 0 in "logprobs", got 0.5'),
        ('{"prompt": "\\ud800", "response": "r"}', "got half a surrogate pair"),
        (b'{"prompt": "caf\xe9", "response": "r"}', "log.jsonl:2: expected UTF-8 text"),
        ({"messages": []}, "expected a turn of the assistant, got a conversation without"),
        ({"messages": 1}, 'expected an array of messages for "messages", got a number'),
        ({"messages": [{"role": "user", "content": 1}]}, "expected text or an array of parts"),
        ({"request": {"messages": []}, "response": {"choices": 1}}, 'of objects for "choices"'),
    ],
)
def test_broken_records_are_named(tmp_path: Path, record: object, message: str) -> None:
    assert message in fail(tmp_path, PAIR, record)


def test_long_lines_and_other_encodings_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "long.jsonl", PAIR, PAIR | {"prompt": "x" * 500}, PAIR)
    with pytest.raises(LogError, match=r"long\.jsonl:2: expected a line of at most 100 bytes, got"):
        list(LogReader(path, max_line_bytes=100))
    (tmp_path / "wide.jsonl").write_text(json.dumps(PAIR), encoding="utf-16")
    with pytest.raises(LogError, match=r"wide\.jsonl:1: expected UTF-8 text, got UTF-16"):
        list(LogReader(tmp_path / "wide.jsonl"))
    with pytest.raises(LogError, match=r"none\.jsonl: cannot be read"):
        LogReader(tmp_path / "none.jsonl")


def test_skipped_lines_are_counted_by_kind(tmp_path: Path) -> None:
    path = write(
        tmp_path / "log.jsonl",
        b"\xef\xbb\xbf" + json.dumps(PAIR).encode(),
        '{"prompt": "p", "respon',
        PAIR | {"prompt": None},
        b"\xff{}",
        PAIR | {"response": ""},
        "",
        PAIR | {"prompt": "x" * 900},
        PAIR,
    )
    reader = LogReader(path, skip_broken=True, max_line_bytes=300)
    assert [request.place[-1] for request in reader] == ["1", "8"]
    at = reader.position
    assert at.skipped == {
        "cut off": 1,
        "wrong field": 1,
        "encoding": 1,
        "empty response": 1,
        "long line": 1,
    }
    assert (at.number, at.offset, at.requests) == (8, path.stat().st_size, 2)
    assert all(
        f"log.jsonl:{n}: " in text for n, text in zip((2, 3, 4, 5, 7), at.examples, strict=True)
    )


@given(st.lists(st.binary(max_size=12), max_size=12), st.integers(1, 8))
def test_lines_are_those_of_the_file(tmp_path_factory: Any, parts: list[bytes], limit: int) -> None:
    path = tmp_path_factory.mktemp("lines") / "l"
    data = b"\n".join(parts)
    path.write_bytes(data)
    parts = data.split(b"\n")
    seen = {line.number: line for line in read_lines(path, limit)}
    for number, part in enumerate(parts, start=1):
        if not part.strip() and len(part) <= limit:
            assert number not in seen
            continue
        line = seen[number]
        end = sum(len(other) + 1 for other in parts[:number])
        assert line.end == min(end, len(data))
        if len(part) > limit:
            assert line.error is not None and line.text == ""
            continue
        assert line.complete == (end <= len(data))
        if line.error is None:
            wanted = part.removeprefix(b"\xef\xbb\xbf") if number == 1 else part
            assert line.text.encode() == wanted.rstrip(b"\r\n")


def test_reading_goes_on_at_a_position(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", *(PAIR | {"response": str(n)} for n in range(5)))
    reader = iter(LogReader(path, position=(position := LogPosition())))
    first = [next(reader).response for _ in range(2)]
    reader.close()  # type: ignore[attr-defined]
    assert (position.number, position.requests) == (2, 2)
    rest = [request.response for request in LogReader(path, position=position)]
    assert first + rest == list("01234")


# -- OpenAI's forms


def test_calls_of_chat_completions(tmp_path: Path) -> None:
    record = {
        "session_id": "s",
        "request": {
            "messages": [
                {"role": "system", "content": "be kind"},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "hi"}, {"type": "image_url"}],
                },
            ]
        },
        "response": {
            "created": 1_700_000_000,
            "choices": [
                {"message": {"role": "assistant", "content": "hello", "reasoning_content": "so: "}},
                {
                    "message": {
                        "content": None,
                        "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
                    }
                },
            ],
        },
    }
    first, second = read(tmp_path, record)
    assert first.prompt == (Message("system", "be kind"), Message("user", "hi"))
    assert (first.response, first.session, first.arrival) == ("so: hello", "s", 1.7e9)
    assert second.response == '{"name": "f", "arguments": "{}"}'


def test_batches_completions_and_token_ids(tmp_path: Path) -> None:
    batch = {
        "custom_id": "1",
        "body": {"prompt": "p"},
        "response": {"status_code": 200, "body": {"choices": [{"text": "t"}]}},
    }
    ids = {
        "request": {"messages": [{"role": "user", "content": "hi"}]},
        "response": {
            "prompt_token_ids": [5, 6],
            "choices": [{"token_ids": [7], "message": {"content": "x"}}],
        },
    }
    failed = {"request": {"prompt": "p"}, "response": None, "error": {"code": 500}}
    flat = {
        "messages": [{"role": "user", "content": "q"}],
        "choices": [{"message": {"content": "a"}}],
    }
    text, tokens, joined = read(tmp_path, batch, ids, failed, flat)
    assert (text.prompt, text.response) == ("p", "t")
    assert isinstance(tokens.prompt, np.ndarray) and tokens.prompt.tolist() == [5, 6]
    assert isinstance(tokens.response, np.ndarray) and tokens.response.tolist() == [7]
    assert (joined.prompt, joined.response) == ((Message("user", "q"),), "a")


def test_a_conversation_is_a_session_of_requests(tmp_path: Path) -> None:
    turns = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    record = {"messages": [{"role": role, "content": text} for role, text in turns]}
    first, second = read(tmp_path, record)
    assert (first.prompt, first.response) == ((Message("user", "a"),), "b")
    assert isinstance(second.prompt, tuple) and len(second.prompt) == 3
    assert first.session == second.session is not None


def test_logprobs_of_both_apis(tmp_path: Path) -> None:
    content = [
        {
            "token": "a",
            "logprob": -0.1,
            "top_logprobs": [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -2.5}],
        },
        {"token": "token_id:9", "logprob": -1, "top_logprobs": []},
    ]
    chat = {
        "request": {"messages": []},
        "response": {"choices": [{"message": {"content": "ab"}, "logprobs": {"content": content}}]},
    }
    completion = {
        "request": {"prompt": "p"},
        "response": {
            "choices": [
                {
                    "text": "ab",
                    "logprobs": {
                        "tokens": ["a", "b"],
                        "token_logprobs": [-1, -2],
                        "top_logprobs": [{"a": -1, "c": -3}, None],
                    },
                }
            ]
        },
    }
    first, second = read(tmp_path, chat, completion)
    assert first.logprobs == ((("a", -0.1), ("b", -2.5)), ((9, -1.0),))
    assert second.logprobs == ((("a", -1.0), ("c", -3.0)), (("b", -2.0),))


# -- servers' logs

VLLM = [
    "INFO 11-30 00:11:12 [api_server.py:1] Started server",
    "DEBUG 11-30 00:11:13 [request_logger.py:55] Request chatcmpl-1 details: prompt: "
    "'it\\'s (a, \"b\")\\n', prompt_token_ids: [1, 2, 3], prompt_embeds shape: None.",
    "INFO 11-30 00:11:13 [request_logger.py:65] Received request chatcmpl-1: params: "
    "SamplingParams(n=1, stop=['prompt: x']), lora_request: None.",
    "INFO 11-30 00:11:15 [request_logger.py:109] Generated response chatcmpl-1: output: "
    '"don\'t, ]", finish_reason: stop',
    "INFO 11-30 00:12:00 [logger.py:9] Received request cmpl-2: prompt: 'old, form', params: "
    "SamplingParams(n=1), prompt_token_ids: None, lora_request: None.",
    "DEBUG 11-30 00:12:01 [r.py:1] Generated response cmpl-2 details: output_token_ids: [8, 9]",
    "INFO 11-30 00:12:01 [r.py:1] Generated response cmpl-2 (streaming complete): output: 'x', "
    "finish_reason: length",
    "INFO 11-30 00:12:01 [r.py:1] Generated response cmpl-9 (streaming delta): output: 'x', x",
]


def test_vllm_lines(tmp_path: Path) -> None:
    reader = LogReader(write(tmp_path / "vllm.log", *VLLM))
    first, second = reader
    assert isinstance(first.prompt, np.ndarray) and first.prompt.tolist() == [1, 2, 3]
    assert first.response == "don't, ]"
    assert first.arrival is not None and first.finish == first.arrival + 2
    assert second.prompt == "old, form"
    assert isinstance(second.response, np.ndarray) and second.response.tolist() == [8, 9]
    assert reader.position.other_lines == 6 and not reader.position.server.waiting


def test_vllm_lines_that_are_broken(tmp_path: Path) -> None:
    assert "vllm.log:2" in _vllm_error(tmp_path, [VLLM[0], VLLM[3]])
    assert "expected a line with the prompt of chatcmpl-1" in _vllm_error(tmp_path, [VLLM[3]])
    assert "ends inside a text" in _vllm_error(tmp_path, [VLLM[1], VLLM[3][:-30]])
    half = VLLM[1][: VLLM[1].index("3]")]
    assert "ends inside" in _vllm_error(tmp_path, [half])


def _vllm_error(tmp_path: Path, lines: list[str]) -> str:
    with pytest.raises(LogError) as caught:
        list(LogReader(write(tmp_path / "vllm.log", *lines)))
    return str(caught.value)


SGLANG_OUT = (
    "{'text': \"it's }\", 'output_ids': [4, 5], 'meta_info': {'id': 'r', 'finish_reason': "
    "{'type': 'stop'}, 'e2e_latency': 1.5, 'weird': <object at 0x1>}}"
)
SGLANG = (
    "[2025-05-27 20:00:14] Finish: obj=GenerateReqInput(rid='r', text='a, out={x', "
    f"input_ids=None, sampling_params={{'n': 1}}, bootstrap=Foo(a=1)), out={SGLANG_OUT}"
)


def test_sglang_lines(tmp_path: Path) -> None:
    request = one(tmp_path, "[2025] Receive: obj=GenerateReqInput(rid='r')", SGLANG)
    assert request.prompt == "a, out={x"
    assert isinstance(request.response, np.ndarray) and request.response.tolist() == [4, 5]
    assert request.finish is not None and request.arrival == request.finish - 1.5
    cut = SGLANG.replace("'a, out={x'", "'a' ... 'b'")
    assert "got one that the server cut short" in fail(tmp_path, cut)
    assert "cut off" in _problem(tmp_path, SGLANG[:-20])
    assert 'expected "obj=...(...), out={...}"' in fail(tmp_path, SGLANG.partition(", out={'")[0])


def _problem(tmp_path: Path, line: str) -> str:
    with pytest.raises(LogError) as caught:
        read(tmp_path, line)
    return caught.value.problem


def test_sglang_json(tmp_path: Path) -> None:
    record: dict[str, Any] = {
        "timestamp": "2025-05-27T20:00:14",
        "event": "request.finished",
        "rid": "r",
        "obj": {"text": "p", "input_ids": None},
        "out": {
            "text": "x",
            "output_ids": [4, 5],
            "meta_info": {
                "output_token_logprobs": [[-0.5, 4, None], [-0.25, 5, None]],
                "output_top_logprobs": [[[-0.5, 4, None], [-1, 7, None]], None],
            },
        },
    }
    request = one(tmp_path, {"event": "request.received", "obj": {}}, record)
    assert request.logprobs == (((4, -0.5), (7, -1.0)), ((5, -0.25),))
    record["out"]["output_ids"] = [4, "...", 5]
    record["out"]["text"] = None
    assert "cut short" in fail(tmp_path, record)


@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.one_of(
            st.text(max_size=12),
            st.lists(st.integers(), max_size=3),
            st.none(),
            st.lists(st.text("',\"[]{}\\=", max_size=4), max_size=2),
        ),
    )
)
def test_literals_are_what_repr_wrote(fields: dict[str, object]) -> None:
    text = ", ".join(f"{key}={value!r}" for key, value in fields.items()) + ")"
    assert fields_until(text, 0, "f:1")[0] == fields


# -- spans


def _attribute(key: str, value: str) -> dict[str, object]:
    return {"key": key, "value": {"stringValue": value}}


def _typed(record: dict[str, str]) -> dict[str, object]:
    pairs = [{"key": key, "value": {"stringValue": text}} for key, text in record.items()]
    return {"kvlistValue": {"values": pairs}}


def test_spans_of_otlp(tmp_path: Path) -> None:
    messages = [{"role": "user", "parts": [{"type": "text", "content": "hi"}, {"type": "blob"}]}]
    answers = [{"role": "assistant", "parts": [{"type": "text", "content": "ho"}]}]
    span = {
        "name": "chat m",
        "startTimeUnixNano": "1700000000000000000",
        "endTimeUnixNano": "1700000002000000000",
        "attributes": [
            _attribute("gen_ai.operation.name", "chat"),
            _attribute("gen_ai.conversation.id", "c"),
            _attribute("gen_ai.input.messages", json.dumps(messages)),
            _attribute("gen_ai.output.messages", json.dumps(answers)),
        ],
    }
    other = {"name": "GET /", "attributes": [_attribute("http.method", "GET")]}
    silent = {"name": "chat m", "attributes": [_attribute("gen_ai.operation.name", "chat")]}
    export = {"resourceSpans": [{"scopeSpans": [{"spans": [span, other, silent]}]}]}
    request = one(tmp_path, export)
    assert (request.prompt, request.response) == ((Message("user", "hi"),), "ho")
    assert (request.workload, request.session) == ("chat", "c")
    assert (request.arrival, request.finish) == (1.7e9, 1.7e9 + 2)
    parts = {"arrayValue": {"values": [_typed({"type": "text", "content": "hey"})]}}
    message = {"kvlistValue": {"values": [{"key": "parts", "value": parts}]}}
    typed = {"key": "gen_ai.output.messages", "value": {"arrayValue": {"values": [message]}}}
    span["attributes"] = [typed]
    assert one(tmp_path, export).response == "hey"
    span["attributes"] = [_attribute("gen_ai.output.messages", json.dumps(answers)[:-5])]
    assert 'expected JSON in "gen_ai.output.messages"' in fail(tmp_path, export)


def test_older_spans(tmp_path: Path) -> None:
    events = {
        "name": "chat",
        "attributes": {},
        "events": [
            {"name": "gen_ai.user.message", "attributes": {"content": "q"}},
            {"name": "gen_ai.choice", "attributes": {"index": 0, "message": {"content": "a"}}},
        ],
    }
    flat = {
        "name": "openai.chat",
        "attributes": {
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "q",
            "gen_ai.completion.0.content": "a",
        },
    }
    for request in read(tmp_path, events, flat):
        assert (request.prompt, request.response) == ((Message("user", "q"),), "a")


def test_a_format_holds_all_lines_to_it(tmp_path: Path) -> None:
    assert 'expected the key "prompt"' in fail(tmp_path, {"messages": []}, log_format="pairs")
    assert read(tmp_path, {"name": "x", "attributes": {}}, log_format="spans") == []
    with pytest.raises(ValueError, match="expected a format among auto, pairs"):
        read(tmp_path, PAIR, log_format="csv")


# -- anything at all

ANSWER = [{"role": "assistant", "parts": [{"type": "text", "content": "ho"}]}]
GOOD: list[dict[str, Any]] = [
    {"prompt": "p", "response_ids": [1], "logprobs": [-1], "arrival": 1, "session": "x"},
    {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
    {
        "request": {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
            "metadata": {"session_id": "s"},
        },
        "response": {
            "created": 1,
            "choices": [
                {
                    "message": {"content": "x", "tool_calls": [{"function": {"name": "f"}}]},
                    "logprobs": {
                        "content": [{"token": "x", "logprob": -1, "top_logprobs": [{"token": "y"}]}]
                    },
                }
            ],
        },
    },
    {
        "request": {"prompt": "p"},
        "response": {
            "choices": [
                {
                    "text": "x",
                    "logprobs": {"tokens": ["x"], "token_logprobs": [-1], "top_logprobs": [{}]},
                }
            ]
        },
    },
    {
        "event": "request.finished",
        "timestamp": "2025-05-27T20:00:14",
        "obj": {"text": "p", "input_ids": [1]},
        "out": {
            "output_ids": [4],
            "meta_info": {
                "e2e_latency": 1.0,
                "output_token_logprobs": [[-1, 4, None]],
                "output_top_logprobs": [[[-1, 4, None]]],
            },
        },
    },
    {
        "name": "c",
        "attributes": {"gen_ai.prompt.0.content": "q", "gen_ai.completion.0.content": "a"},
        "events": [{"name": "gen_ai.user.message", "attributes": {"content": "q"}}],
    },
    {
        "resourceSpans": [
            {
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "name": "c",
                                "startTimeUnixNano": "1",
                                "attributes": [
                                    _attribute("gen_ai.output.messages", json.dumps(ANSWER)),
                                    {"key": "k", "value": _typed({"a": "b"})},
                                    {"key": "l", "value": {"arrayValue": {"values": [1]}}},
                                ],
                            },
                        ]
                    }
                ]
            }
        ]
    },
]
LEAVES: list[Any] = [
    *(None, True, 0, -1, 10**400, 1e308, float("nan"), "", "x", "[1]", "{}"),
    *([], {}, [[]], [{}], {"a": 1}, [None], ["x"], [1.5]),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to each value inside a record."""
    keys: Any = value if isinstance(value, dict) else ()
    keys = range(len(value)) if isinstance(value, list) else keys
    inside = [found for key in keys for found in places(value[key], (*path, key))]
    return [path, *inside] if path else inside


@given(
    st.sampled_from(GOOD),
    st.lists(st.tuples(st.integers(0, 999), st.sampled_from(LEAVES)), max_size=2),
    st.sampled_from(["auto", "auto", "pairs", "chat", "server", "spans"]),
)
@settings(max_examples=400, deadline=None)
def test_no_record_brings_the_reader_down(
    tmp_path_factory: Any,
    record: dict[str, Any],
    changes: list[tuple[int, Any]],
    log_format: str,
) -> None:
    record = deepcopy(record)
    for number, leaf in changes:
        path = places(record)
        *above, key = path[number % len(path)]
        reduce(lambda inner, step: inner[step], above, record)[key] = deepcopy(leaf)
    log = tmp_path_factory.getbasetemp() / "any.jsonl"
    log.write_text(json.dumps(record) + "\n", encoding="utf-8")
    reader = LogReader(log, log_format, skip_broken=True)
    requests = list(reader)
    at = reader.position
    assert sum(at.skipped.values()) + at.other_lines + bool(requests) == 1


@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_no_damage_to_a_server_log_brings_the_reader_down(
    tmp_path_factory: Any, noise: bytes, place: int, which: int
) -> None:
    lines = [line.encode() for line in (*VLLM, SGLANG)]
    number = (1, 3, 4, len(lines) - 1)[which]
    cut = place % len(lines[number])
    lines[number] = lines[number][:cut] + noise + lines[number][cut + len(noise) :]
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_bytes(b"\n".join(lines) + b"\n")
    reader = LogReader(path, skip_broken=True)
    found = len(list(reader))
    at = reader.position
    assert found == at.requests <= 3
    assert at.number >= len(lines)
