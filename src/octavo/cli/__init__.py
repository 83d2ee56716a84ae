"""Commands: parse arguments, then call the server or the api."""
