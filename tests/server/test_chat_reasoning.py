"""Thinking in /v1/chat/completions: `reasoning` beside the content."""

from __future__ import annotations

from chat_stream import USER, ask, ask_both, ask_chunks
from fake_llm import FakeLLM
from test_chat_tools import CALL, TOOLS, called

R1 = {"reasoning_parser": "deepseek_r1"}


async def test_thinking_is_told_from_the_answer(connect, llm: FakeLLM) -> None:
    llm.reply = "<think>\nHm, ö.\n</think>\n\nYes.\n"
    for parser in ("deepseek_r1", "qwen3"):
        assert await ask_both(connect(reasoning_parser=parser)) == {
            "message": {"role": "assistant", "content": "Yes.\n", "refusal": None, "reasoning": "Hm, ö."},
            "finish_reason": "stop",
        }


async def test_without_a_parser_it_is_all_content(client, llm: FakeLLM) -> None:
    llm.reply = "<think>Hm.</think>Yes."
    assert (await ask_both(client))["message"]["content"] == llm.reply


async def test_thinking_that_never_ends_leaves_no_content(connect, llm: FakeLLM) -> None:
    llm.reply = "<think>Hm."
    message = (await ask_both(connect(**R1)))["message"]
    assert (message["reasoning"], message["content"]) == ("Hm.", None)


async def test_thinking_may_be_left_out(connect, llm: FakeLLM) -> None:
    llm.reply = "<think>Hm.</think>Yes."
    message = (await ask_both(connect(**R1), include_reasoning=False))["message"]
    assert message == {"role": "assistant", "content": "Yes.", "refusal": None}
    assert (await ask_both(connect(**R1), include_reasoning=True))["message"]["reasoning"] == "Hm."


async def test_calls_after_thinking(connect, llm: FakeLLM) -> None:
    llm.reply = f"<think>Is <tool_call> right?</think>\n\nSo: {CALL}"
    choice = await ask_both(connect(tool_call_parser="hermes", **R1), tools=TOOLS)
    assert choice == {
        "message": {
            "role": "assistant",
            "content": "So:",
            "refusal": None,
            "reasoning": "Is <tool_call> right?",
            "tool_calls": [called("get_weather", '{"city": "Bodø"}')],
        },
        "finish_reason": "tool_calls",
    }


async def test_tokens_of_thinking_are_counted(connect, llm: FakeLLM) -> None:
    llm.reply = "<think>Hm.</think>Yes."
    body = {"messages": [USER]}
    usage = (await connect(**R1).post("/v1/chat/completions", json=body)).json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": len("<think>Hm.</think>")}
    last = (await ask_chunks(connect(**R1), stream_options={"include_usage": True}))[-1]
    assert last["usage"] == usage
    llm.reply = "Yes, </think> is a tag."
    usage = (await connect(reasoning_parser="qwen3").post("/v1/chat/completions", json=body)).json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}


async def test_the_prompt_says_whether_thinking_began(connect, llm: FakeLLM) -> None:
    llm.reply = "Hm.</think>Yes."
    client = connect(reasoning_parser="qwen3")
    assert (await ask(client))["message"]["content"] == llm.reply
    opened = [USER, {"role": "assistant", "content": "<think>"}]
    choice = await ask(client, messages=opened, continue_final_message=True)
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("Hm.", "Yes.")
