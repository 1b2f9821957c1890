"""A real Kubernetes cluster on one machine: real programs in namespaces, removed afterwards."""
