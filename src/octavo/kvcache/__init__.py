"""Block pool, block tables, copy-on-write plan: pure policy over values."""
