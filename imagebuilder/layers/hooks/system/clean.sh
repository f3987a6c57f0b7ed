# Inside the new root: what is secret, of this host or of this moment goes away.
# $1 is the name of apt's file of sources.
set -eu

rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*
install -m 0644 /imagebuilder/sources "/etc/apt/sources.list.d/$1"

# Keys of the host that sshd would be: every container makes its own.
rm -f /etc/ssh/ssh_host_*
# What a container's engine provides, copied from this host or left unset by the bootstrap.
rm -f /etc/hostname /etc/hosts /etc/resolv.conf /etc/fstab
# An empty one is made anew at the first boot: machine-id(5).
[ ! -e /etc/machine-id ] || : >/etc/machine-id
rm -f /var/lib/dbus/machine-id

find /var/log -type f -delete
rm -rf /var/cache/apt/* /var/lib/apt/lists/* /var/cache/ldconfig/aux-cache
rm -f /var/lib/dpkg/*-old /var/cache/debconf/*-old
for file in passwd group shadow gshadow subuid subgid; do
    rm -f "/etc/$file-"
done
# The third field is the day of the last change of the password. Zero would ask for a new one at login.
sed -i -E 's/^([^:]*:[^:]*:)[^:]*:/\1:/' /etc/shadow
