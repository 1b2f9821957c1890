"""The iptables mode: upstream's rules to the letter."""
