"""One step on N workers."""
