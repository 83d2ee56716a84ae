"""Tool calls in a model's text: one parser a format, behind one interface."""
