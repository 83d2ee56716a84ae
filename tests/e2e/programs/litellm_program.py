"""litellm: chat, whole and streamed, and a completion."""

import json
import sys

import litellm

base, prompt, message = sys.argv[1:]
common = {"api_base": base, "api_key": "none", "temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
messages = [{"role": "user", "content": message}]
whole = litellm.completion(model="openai/tiny", messages=messages, **common)
pieces = litellm.completion(model="openai/tiny", messages=messages, stream=True, **common)
completed = litellm.text_completion(model="text-completion-openai/tiny", prompt=prompt, **common)
print(
    json.dumps(
        {
            "chat": whole.choices[0].message.content,
            "streamed": "".join(piece.choices[0].delta.content or "" for piece in pieces),
            "completion": completed.choices[0].text,
            "tokens": whole.usage.completion_tokens,
        }
    )
)
