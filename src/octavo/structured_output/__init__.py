"""Texts that must match a schema, an expression or a grammar: which tokens may come next. On llguidance, loaded at first use."""
