"""One file a family: config to graph, and the map of its weight names."""
