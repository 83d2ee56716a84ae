"""The step loop; clients in process and over a socket; supervision."""
