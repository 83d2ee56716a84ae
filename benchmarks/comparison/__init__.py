"""The comparison of Octavo with its peers: what is made, run, gathered and written."""
