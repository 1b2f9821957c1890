#!/bin/sh
# Makes sure the programs the lab and the kernel tests run are there.
# name of a program:the Debian package that has it
set -eu

NEEDED="ip:iproute2 nft:nftables iptables:iptables ipset:ipset conntrack:conntrack \
modprobe:kmod openssl:openssl linux.uml:user-mode-linux haproxy:haproxy"

missing=""
for pair in $NEEDED; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "These Debian packages are missing:$missing" >&2
    echo "Install them as root: apt-get install --no-install-recommends$missing" >&2
    echo "(What needs them is skipped, and says so.)" >&2
    exit 0
fi
echo "Installing Debian packages:$missing"
export DEBIAN_FRONTEND=noninteractive
# A fresh machine has no package lists yet.
apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 || {
    apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null
}
