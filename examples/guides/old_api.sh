#!/bin/sh
# vLLM's first API, from the server of serve_short.sh.
curl -s "${URL:-http://localhost:8080}/generate" -d '{"prompt": "San Francisco is a", "max_tokens": 20, "temperature": 0}' -H "Content-Type: application/json"
