"""The process that carries bytes for the userspace mode.

It is a process of its own so that traffic never holds up the control plane, nor the other way
round. It decides nothing: listening sockets and endpoints come from the proxy over a Unix socket
(`messages`), and when that closes, it ends.
"""
