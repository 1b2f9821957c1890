"""The userspace mode: iptables rules divert service traffic to sockets that a process serves."""
