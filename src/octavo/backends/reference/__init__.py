"""The readable definition of each operation, in numpy; the oracle of the tests."""
