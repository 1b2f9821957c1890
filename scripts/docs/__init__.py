"""Pages of the documentation that are made by code: `make reference` writes them, tests compare.

They are committed, because they are read in the repository as much as on the site, and because a
change of a flag or a metric then shows up in the diff that a reviewer reads.
"""
