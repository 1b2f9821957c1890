"""The ipvs mode: the kernel's own load balancer, with a constant number of iptables rules."""
