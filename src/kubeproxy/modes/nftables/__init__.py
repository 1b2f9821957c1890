"""The nftables mode: shared endpoint maps and class chains, spoken over netlink."""
