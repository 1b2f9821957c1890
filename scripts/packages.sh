#!/bin/sh
# Makes sure the programs that a purpose uses are there: sh scripts/packages.sh demo|test|cluster|browser
# name of a program:the Debian package that has it
set -eu

DEMO="ip:iproute2 nft:nftables iptables:iptables modprobe:kmod"
TEST="$DEMO ipset:ipset conntrack:conntrack openssl:openssl linux.uml:user-mode-linux \
haproxy:haproxy keepalived:keepalived ipvsadm:ipvsadm curl:curl bash:bash zsh:zsh fish:fish man:man-db mmdebstrap:mmdebstrap runc:runc \
qemu-system-x86_64:qemu-system-x86 busybox:busybox-static chromium:chromium chromedriver:chromium-driver"
CLUSTER="$DEMO runc:runc /usr/lib/cni/bridge:containernetworking-plugins busybox:busybox-static \
dig:bind9-dnsutils nc:netcat-openbsd dropbear:dropbear-bin wget:wget curl:curl ipset:ipset conntrack:conntrack openssl:openssl"
BROWSER="chromium:chromium chromedriver:chromium-driver"

case "${1:-}" in
demo) NEEDED="$DEMO" ;;
test) NEEDED="$TEST" ;;
cluster) NEEDED="$CLUSTER" ;;
browser) NEEDED="$BROWSER" ;;
*) echo "usage: packages.sh demo|test|cluster|browser" >&2; exit 2 ;;
esac

missing=""
for pair in $NEEDED; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
# Debian has what makes virtual environments in a package of its own.
"${PYTHON:-python3}" -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"
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
