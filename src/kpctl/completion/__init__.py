"""Shell completion of both commands, generated from the tables they are parsed with."""
