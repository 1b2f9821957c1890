"""`python -m kubeproxy` is `kube-proxy`."""

import sys

from kubeproxy.cli import main

sys.exit(main())
