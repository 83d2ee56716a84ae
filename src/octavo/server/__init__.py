"""OpenAI routes, server-sent events, metrics; errors become replies."""
