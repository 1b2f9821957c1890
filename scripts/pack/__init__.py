"""What people can get of this project: an image, one file, a Debian package, a wheel and an sdist.

Every product is made from the files of the working tree, without a container engine, and has the
same bytes each time it is made from one commit and one set of packages.
"""
