"""One graph, many machines: each backend turns a graph and weights into a program."""
