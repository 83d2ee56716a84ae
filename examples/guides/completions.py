"""A completion from the server of serve_openai.sh."""

import os

import requests

url = os.environ.get("URL", "http://localhost:8000")
response = requests.post(
    f"{url}/v1/completions",
    json={"model": os.environ.get("MODEL", "smollm2"), "prompt": "San Francisco is a", "max_tokens": 50},
).json()
print(response["choices"][0]["text"])
