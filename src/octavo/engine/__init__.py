"""The step loop; a client over a socket; supervision."""
