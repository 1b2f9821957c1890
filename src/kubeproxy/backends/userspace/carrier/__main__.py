"""Entry of the carrier process."""

import sys

from kubeproxy.backends.userspace.carrier.process import main

main(sys.argv[1:])
