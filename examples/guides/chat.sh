#!/bin/sh
# Messages at /v1/completions, to the server of serve_short.sh; the part of a model's name after the slash will do.
curl -s "${URL:-http://localhost:8080}/v1/completions" -H "Content-Type: application/json" -d '{
  "model": "'"${NAME:-smollm2}"'",
  "messages": [{"role": "user", "content": "안녕하세요! What is a cache?"}],
  "temperature": 0.8
}'
