# Runs in the new root: removes secrets, settings of this host, and temporary files.
# $1 is the name of apt's file of sources.
set -eu

rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*
install -m 0644 /imagebuilder/sources "/etc/apt/sources.list.d/$1"

# sshd's host keys: every container makes its own.
rm -f /etc/ssh/ssh_host_*
# Files that container engines provide; the bootstrap copied some of them from this host.
rm -f /etc/hostname /etc/hosts /etc/resolv.conf /etc/fstab
# An empty machine-id is filled at the first boot: machine-id(5).
[ ! -e /etc/machine-id ] || : >/etc/machine-id
rm -f /var/lib/dbus/machine-id

find /var/log -type f -delete
rm -rf /var/cache/apt/* /var/lib/apt/lists/* /var/cache/ldconfig/aux-cache
rm -f /var/lib/dpkg/*-old /var/cache/debconf/*-old
for file in passwd group shadow gshadow subuid subgid; do
    rm -f "/etc/$file-"
done
# Empty the third field, the day of the last password change. Zero would require a new password at login.
sed -i -E 's/^([^:]*:[^:]*:)[^:]*:/\1:/' /etc/shadow
