"""langchain-openai: chat, whole and streamed, a completion, and an answer that is held to a schema."""

import json
import sys

from langchain_openai import ChatOpenAI, OpenAI

base, prompt, message = sys.argv[1:]
common = {"base_url": base, "api_key": "none", "model": "tiny", "temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
chat = ChatOpenAI(**common)
whole = chat.invoke(message)
schema = {
    "title": "mood",
    "description": "How it is.",
    "type": "object",
    "properties": {"mood": {"enum": ["good", "bad"]}},
    "required": ["mood"],
    "additionalProperties": False,
}
held = ChatOpenAI(**{**common, "max_tokens": 40, "extra_body": {}}).with_structured_output(schema, method="json_schema", strict=True)
print(
    json.dumps(
        {
            "chat": whole.content,
            "streamed": "".join(piece.content for piece in chat.stream(message)),
            "completion": OpenAI(**common).invoke(prompt),
            "tokens": whole.usage_metadata["output_tokens"],
            "mood": held.invoke(message)["mood"],
        }
    )
)
