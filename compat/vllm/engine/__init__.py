"""The engine and its arguments."""
