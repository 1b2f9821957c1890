"""The process that carries bytes for the userspace mode.

It is a separate process so that traffic never delays the control plane, nor the other way round. It
makes no decisions: listening sockets and endpoints come from the proxy over a Unix socket
(`messages`), and it exits when that control socket is closed.
"""
