"""Entry of the carrier process."""

import sys

from kubeproxy.modes.userspace.carrier.process import main

main(sys.argv[1:])
