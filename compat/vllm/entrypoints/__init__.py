"""The commands and the class that programs begin with."""
