# cuda12-torch: rendered by imagebuilder from its recipe and lock 737abc979119. Change the recipe, not this file.
#
#   docker buildx build --file cuda12-torch.Dockerfile --tag cuda12-torch:torch2.10.0-cu12.8-py3.13-trixie .
#
# The image gets the time of the build as its date. With this option, it gets that of the lock's packages:
#
#   --build-arg SOURCE_DATE_EPOCH=1795227046
#
# With a proxy that has a private certificate authority, or with private mirrors, pass the settings as secrets. They
# are mounted for single steps and never become a part of a layer:
#
#   --secret id=ca,src=/etc/ssl/certs/ca-certificates.crt    certificate authorities to trust
#   --secret id=pip,src=$HOME/.config/pip/pip.conf           the package index
#   --secret id=apt,src=apt.conf                             apt's settings, see apt.conf(5)
#   --secret id=sources,src=mirror.sources                   the Debian archive, see sources.list(5)
#   --build-arg https_proxy                                  the proxy from the environment; with its address on the
#                                                            command line, the list of processes would show a password
#
# Without a registry or an archive, use folders of this host in their place:
#
#   --build-context debian:trixie=oci-layout://FOLDER         the base, as an OCI image
#   --build-context debs=FOLDER                              the packages, as files that end in .deb

# ---- the packages as files, if a build context of this name replaces this empty stage
FROM scratch AS debs

# ---- debian trixie, 242 packages
FROM debian:trixie AS os
RUN --mount=type=bind,from=debs,target=/run/debs \
    --mount=type=secret,id=apt,target=/run/secrets/apt.conf \
    --mount=type=secret,id=sources,target=/run/secrets/apt.sources \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    --mount=type=cache,target=/var/cache/apt,sharing=locked,id=apt-trixie \
    --mount=type=tmpfs,target=/var/lib/apt/lists \
    --mount=type=tmpfs,target=/tmp \
    <<'IMAGEBUILDER_END_OF_FILE'
# install the packages
set -eu
umask 022
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true LC_ALL=C.UTF-8 TZ=UTC
# What is compiled or hashed while installing does not depend on the day.
export SOURCE_DATE_EPOCH=0 PYTHONHASHSEED=0 PERL_HASH_SEED=0
export APT_CONFIG=/tmp/apt.conf
{
    # An interrupted build starts again, so dpkg need not flush files to the disk.
    echo 'Acquire::Retries "3"; DPkg::Options:: "--force-unsafe-io";'
    [ ! -e /run/secrets/apt.conf ] || cat /run/secrets/apt.conf
    [ ! -e /run/secrets/ca.crt ] || echo 'Acquire::https::CaInfo "/run/secrets/ca.crt";'
    [ ! -e /run/secrets/apt.sources ] ||
        echo 'Dir::Etc::SourceList "/run/secrets/apt.sources"; Dir::Etc::SourceParts "/dev/null";'
} >"$APT_CONFIG"
# Exact versions: if the archive no longer has them, this step fails instead of installing others.
set -- \
    adduser=3.152 \
    apt=3.0.4 \
    autoconf=2.72-3.1 \
    automake=1:1.17-4 \
    autotools-dev=20240727.1 \
    base-files=13.8+deb13u7 \
    base-passwd=3.6.7 \
    bash=5.2.37-2+b10 \
    binutils=2.44-3 \
    binutils-common=2.44-3 \
    binutils-x86-64-linux-gnu=2.44-3 \
    bsdutils=1:2.41.5-0+deb13u1 \
    ca-certificates=20250419+deb13u1 \
    coreutils=9.7-3 \
    cpp-14=14.2.0-19 \
    cpp-14-x86-64-linux-gnu=14.2.0-19 \
    dash=0.5.12-12 \
    debconf=1.5.91 \
    debian-archive-keyring=2025.1 \
    debianutils=5.23.2 \
    diffutils=1:3.10-4 \
    dpkg=1.22.22 \
    findutils=4.10.0-3 \
    g++-14=14.2.0-19 \
    g++-14-x86-64-linux-gnu=14.2.0-19 \
    gcc-14=14.2.0-19 \
    gcc-14-base=14.2.0-19 \
    gcc-14-x86-64-linux-gnu=14.2.0-19 \
    gfortran-14=14.2.0-19 \
    gfortran-14-x86-64-linux-gnu=14.2.0-19 \
    grep=3.11-4 \
    gzip=1.13-1+deb13u1 \
    hostname=3.25 \
    ibverbs-providers=56.1-1 \
    ibverbs-utils=56.1-1 \
    init-system-helpers=1.69~deb13u1 \
    iproute2=6.15.0-1 \
    libacl1=2.3.2-2+b1 \
    libamd-comgr2=6.0+git20231212.4510c28+dfsg-3+b2 \
    libamdhip64-5=5.7.1-6+deb13u1 \
    libapparmor1=4.1.0-1 \
    libapt-pkg7.0=3.0.4 \
    libasan8=14.2.0-19 \
    libatomic1=14.2.0-19 \
    libattr1=1:2.5.2-3 \
    libaudit-common=1:4.0.2-2+deb13u1 \
    libaudit1=1:4.0.2-2+deb13u1 \
    libbinutils=2.44-3 \
    libblkid1=2.41.5-0+deb13u1 \
    libbpf1=1:1.5.0-3 \
    libbsd0=0.12.2-2 \
    libbz2-1.0=1.0.8-6 \
    libc-bin=2.41-12+deb13u4 \
    libc-dev-bin=2.41-12+deb13u4 \
    libc6=2.41-12+deb13u4 \
    libc6-dev=2.41-12+deb13u4 \
    libcap-ng0=0.8.5-4+b1 \
    libcap2=1:2.75-10+deb13u1+b3 \
    libcap2-bin=1:2.75-10+deb13u1+b3 \
    libcbor0.10=0.10.2-2 \
    libcc1-0=14.2.0-19 \
    libcom-err2=1.47.2-3+b12 \
    libcrypt-dev=1:4.4.38-1 \
    libcrypt1=1:4.4.38-1 \
    libctf-nobfd0=2.44-3 \
    libctf0=2.44-3 \
    libdb5.3t64=5.3.28+dfsg2-9 \
    libdebconfclient0=0.280 \
    libdrm-amdgpu1=2.4.124-2 \
    libdrm-common=2.4.124-2 \
    libdrm2=2.4.124-2 \
    libedit2=3.1-20250104-1 \
    libelf1t64=0.192-4 \
    libevent-2.1-7t64=2.1.13-stable-1~deb13u1 \
    libevent-core-2.1-7t64=2.1.13-stable-1~deb13u1 \
    libevent-dev=2.1.13-stable-1~deb13u1 \
    libevent-extra-2.1-7t64=2.1.13-stable-1~deb13u1 \
    libevent-openssl-2.1-7t64=2.1.13-stable-1~deb13u1 \
    libevent-pthreads-2.1-7t64=2.1.13-stable-1~deb13u1 \
    libexpat1=2.9.0-1~deb13u1 \
    libfabric1=2.1.0-1.1 \
    libffi8=3.4.8-2 \
    libfido2-1=1.15.0-1+b1 \
    libfuse3-4=3.17.2-3 \
    libgcc-14-dev=14.2.0-19 \
    libgcc-s1=14.2.0-19 \
    libgdbm-compat4t64=1.24-2 \
    libgdbm6t64=1.24-2 \
    libgfortran-14-dev=14.2.0-19 \
    libgfortran5=14.2.0-19 \
    libgmp10=2:6.3.0+dfsg-3 \
    libgomp1=14.2.0-19 \
    libgprofng0=2.44-3 \
    libgssapi-krb5-2=1.21.3-5+deb13u1 \
    libhogweed6t64=3.10.1-1 \
    libhsa-runtime64-1=6.1.2-3 \
    libhsakmt1=6.2.4+ds-1 \
    libhwasan0=14.2.0-19 \
    libhwloc-dev=2.12.0-4 \
    libhwloc-plugins=2.12.0-4 \
    libhwloc15=2.12.0-4 \
    libibmad5=56.1-1 \
    libibumad3=56.1-1 \
    libibverbs-dev=56.1-1 \
    libibverbs1=56.1-1 \
    libisl23=0.27-1 \
    libitm1=14.2.0-19 \
    libjansson4=2.14-2+b3 \
    libjs-jquery=3.6.1+dfsg+~3.5.14-1 \
    libjs-jquery-ui=1.13.2+dfsg-1 \
    libk5crypto3=1.21.3-5+deb13u1 \
    libkeyutils1=1.6.3-6 \
    libkmod2=34.2-2 \
    libkrb5-3=1.21.3-5+deb13u1 \
    libkrb5support0=1.21.3-5+deb13u1 \
    liblastlog2-2=2.41.5-0+deb13u1 \
    libllvm17t64=1:17.0.6-22+b2 \
    liblsan0=14.2.0-19 \
    libltdl-dev=2.5.4-4 \
    libltdl7=2.5.4-4 \
    liblz4-1=1.10.0-4 \
    liblzma5=5.8.1-1+deb13u2 \
    libmd0=1.1.0-2+b1 \
    libmnl0=1.0.5-3 \
    libmount1=2.41.5-0+deb13u1 \
    libmpc3=1.3.1-1+b3 \
    libmpfr6=4.2.2-1 \
    libmunge2=0.5.16-1.1~deb13u1 \
    libncursesw6=6.5+20250216-2 \
    libnettle8t64=3.10.1-1 \
    libnl-3-200=3.7.0-2 \
    libnl-3-dev=3.7.0-2 \
    libnl-route-3-200=3.7.0-2 \
    libnl-route-3-dev=3.7.0-2 \
    libnss-extrausers=0.6-6 \
    libnuma-dev=2.0.19-1 \
    libnuma1=2.0.19-1 \
    libopenmpi-dev=5.0.7-1 \
    libopenmpi40=5.0.7-1 \
    libpam-modules=1.7.0-5 \
    libpam-modules-bin=1.7.0-5 \
    libpam-runtime=1.7.0-5 \
    libpam0g=1.7.0-5 \
    libpciaccess0=0.17-3+b3 \
    libpcre2-8-0=10.46-1~deb13u3 \
    libperl5.40=5.40.1-6+deb13u1 \
    libpmix-dev=5.0.7-1 \
    libpmix2t64=5.0.7-1 \
    libproc2-0=2:4.0.4-9 \
    libpsm2-2=11.2.185-2.1 \
    libpython3-stdlib=3.13.5-1 \
    libpython3.13-minimal=3.13.5-2+deb13u5 \
    libpython3.13-stdlib=3.13.5-2+deb13u5 \
    libquadmath0=14.2.0-19 \
    librdmacm1t64=56.1-1 \
    libreadline8t64=8.2-6 \
    libseccomp2=2.6.0-2 \
    libselinux1=3.8.1-1 \
    libsemanage-common=3.8.1-1 \
    libsemanage2=3.8.1-1 \
    libsepol2=3.8.1-1 \
    libsframe1=2.44-3 \
    libsmartcols1=2.41.5-0+deb13u1 \
    libsqlite3-0=3.46.1-7+deb13u2 \
    libssl3t64=3.5.7-1~deb13u3 \
    libstdc++-14-dev=14.2.0-19 \
    libstdc++6=14.2.0-19 \
    libsystemd-shared=257.13-1~deb13u1 \
    libsystemd0=257.13-1~deb13u1 \
    libtext-charwidth-perl=0.04-11+b4 \
    libtext-wrapi18n-perl=0.06-10 \
    libtinfo6=6.5+20250216-2 \
    libtirpc-common=1.3.6+ds-1 \
    libtirpc3t64=1.3.6+ds-1 \
    libtsan2=14.2.0-19 \
    libubsan1=14.2.0-19 \
    libucx0=1.18.1+ds-2+b1 \
    libudev1=257.13-1~deb13u1 \
    libuuid1=2.41.5-0+deb13u1 \
    libwrap0=7.6.q-36 \
    libwtmpdb0=0.73.0-3+deb13u1 \
    libx11-6=2:1.8.12-1 \
    libx11-data=2:1.8.12-1 \
    libxau6=1:1.0.11-1 \
    libxcb1=1.17.0-2+b1 \
    libxdmcp6=1:1.1.5-1 \
    libxext6=2:1.3.4-1+b3 \
    libxml2=2.12.7+dfsg+really2.9.14-2.1+deb13u3 \
    libxnvctrl0=535.171.04-1+b2 \
    libxtables12=1.8.11-2 \
    libxxhash0=0.8.3-2 \
    libz3-4=4.13.3-1 \
    libze1=1.20.6-1 \
    libzstd1=1.5.7+dfsg-1 \
    linux-libc-dev=6.12.117-1 \
    login.defs=1:4.17.4-2 \
    m4=1.4.19-8 \
    make=4.4.1-2 \
    mawk=1.3.4.20250131-1 \
    media-types=13.0.0 \
    mount=2.41.5-0+deb13u1 \
    ncurses-base=6.5+20250216-2 \
    ncurses-bin=6.5+20250216-2 \
    netbase=6.5 \
    ocl-icd-libopencl1=2.3.3-1 \
    openmpi-bin=5.0.7-1 \
    openmpi-common=5.0.7-1 \
    openssh-client=1:10.0p1-7+deb13u4 \
    openssh-server=1:10.0p1-7+deb13u4 \
    openssh-sftp-server=1:10.0p1-7+deb13u4 \
    openssl=3.5.7-1~deb13u3 \
    openssl-provider-legacy=3.5.7-1~deb13u3 \
    passwd=1:4.17.4-2 \
    perl=5.40.1-6+deb13u1 \
    perl-base=5.40.1-6+deb13u1 \
    perl-modules-5.40=5.40.1-6+deb13u1 \
    procps=2:4.0.4-9 \
    python3=3.13.5-1 \
    python3-minimal=3.13.5-1 \
    python3-pip-whl=25.1.1+dfsg-1 \
    python3-setuptools-whl=78.1.1-0.1 \
    python3-venv=3.13.5-1 \
    python3.13=3.13.5-2+deb13u5 \
    python3.13-minimal=3.13.5-2+deb13u5 \
    python3.13-venv=3.13.5-2+deb13u5 \
    rdma-core=56.1-1 \
    readline-common=8.2-6 \
    rpcsvc-proto=1.4.3-1 \
    runit-helper=2.16.4 \
    sed=4.9-2+deb13u1 \
    sensible-utils=0.0.25 \
    sqv=1.3.0-3+b2 \
    systemd=257.13-1~deb13u1 \
    sysvinit-utils=3.14-4 \
    tar=1.35+dfsg-3.1 \
    tini=0.19.0-3+b8 \
    tzdata=2026f-0+deb13u1 \
    ucf=3.0052 \
    udev=257.13-1~deb13u1 \
    util-linux=2.41.5-0+deb13u1 \
    zlib1g=1:1.3.dfsg+really1.3.1-1+deb13u1 \
    zlib1g-dev=1:1.3.dfsg+really1.3.1-1+deb13u1
if ls /run/debs/*.deb >/dev/null 2>&1; then
    set -- /run/debs/*.deb
else
    apt-get update
fi
# No package may start a service in a build.
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 0755 /usr/sbin/policy-rc.d
apt-get install -y --no-install-recommends --allow-downgrades "$@"
rm -f /usr/sbin/policy-rc.d

# No password. This is `*` and not `!`: sshd without PAM treats `!` as a locked account and refuses keys too.
usermod --password '*' --shell /bin/bash root
(umask 002 && python3 -m venv --without-pip /opt/venv && chmod -R g=u /opt/venv)

# No host key and no machine id may be in a layer: every container makes its own.
rm -f /etc/ssh/ssh_host_* /var/lib/dbus/machine-id
[ ! -e /etc/machine-id ] || : >/etc/machine-id
[ ! -e /etc/machine-id ] || chmod 0644 /etc/machine-id
# Remove what differs from build to build: logs, caches, backups, the days on which passwords were set.
find /var/log -type f -delete
find /run -mindepth 1 -maxdepth 1 ! -name debs ! -name secrets ! -name lock -exec rm -rf {} +
rm -rf /var/cache/ldconfig/aux-cache /var/lib/apt/extended_states /var/cache/debconf/tmp.ci
rm -f /var/lib/dpkg/*-old /var/cache/debconf/*-old
for file in passwd group shadow gshadow subuid subgid; do
    rm -f "/etc/$file-"
done
sed -i -E 's/^([^:]*:[^:]*:)[^:]*:/\1:/' /etc/shadow
IMAGEBUILDER_END_OF_FILE

# ---- the installer of wheels, which is not in the image
# Modules are compiled with their paths in the image, and with the time 0, which exporters do not change. Modules that
# do not compile (templates, tests for Python 2) are left out, as with pip.
FROM os AS installer
RUN python3 -m venv /installer && install -d -m 0755 /out/opt

# ---- torch 2.10.0
FROM installer AS wheels-01-torch
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'torch==2.10.0 --hash=sha256:80b1b5bfe38eb0e9f5ff09f206dcac0a87aadd084230d4a36eea5ec5232c115b' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- nvidia-cublas-cu12 12.8.4.1
FROM installer AS wheels-02-nvidia-cublas-cu12
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'nvidia-cublas-cu12==12.8.4.1 --hash=sha256:8ac4e771d5a348c551b2a426eda6193c19aa630236b418086020df5ba9667142' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- nvidia-cusparse-cu12 12.5.8.93
FROM installer AS wheels-03-nvidia-cusparse-cu12
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'nvidia-cusparse-cu12==12.5.8.93 --hash=sha256:1ec05d76bbbd8b61b06a80e1eaf8cf4959c3d4ce8e711b65ebd0443bb0ebb13b' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- nvidia-cusparselt-cu12 0.7.1
FROM installer AS wheels-04-nvidia-cusparselt-cu12
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'nvidia-cusparselt-cu12==0.7.1 --hash=sha256:f1bb701d6b930d5a7cea44c19ceb973311500847f81b634d802b7b539dc55623' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- nvidia-cusolver-cu12 11.7.3.90
FROM installer AS wheels-05-nvidia-cusolver-cu12
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'nvidia-cusolver-cu12==11.7.3.90 --hash=sha256:4376c11ad263152bd50ea295c05370360776f8c3427b30991df774f9fb26c450' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- nvidia-cufft-cu12 11.3.3.83
FROM installer AS wheels-06-nvidia-cufft-cu12
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'nvidia-cufft-cu12==11.3.3.83 --hash=sha256:4d2dd21ec0b88cf61b62e6b43564355e5222e4a3fb394cac0db101f2dd0d4f74' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- triton 3.6.0
FROM installer AS wheels-07-triton
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'triton==3.6.0 --hash=sha256:10c7f76c6e72d2ef08df639e3d0d30729112f47a56b0c81672edc05ee5116ac9' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- nvidia-nvshmem-cu12 3.4.5
FROM installer AS wheels-08-nvidia-nvshmem-cu12
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'nvidia-nvshmem-cu12==3.4.5 --hash=sha256:042f2500f24c021db8a06c5eec2539027d57460e1c1a762055a6554f72c369bd' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- nvidia-cuda-nvrtc-cu12 12.8.93
FROM installer AS wheels-09-nvidia-cuda-nvrtc-cu12
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'nvidia-cuda-nvrtc-cu12==12.8.93 --hash=sha256:a7756528852ef889772a84c6cd89d41dfa74667e24cca16bb31f8f061e3e9994' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- nvidia-curand-cu12 10.3.9.90
FROM installer AS wheels-10-nvidia-curand-cu12
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'nvidia-curand-cu12==10.3.9.90 --hash=sha256:b32331d4f4df5d6eefa0554c565b626c7216f87a06a4f56fab27c3b68a830ec9' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- nvidia-nvjitlink-cu12 12.8.93
FROM installer AS wheels-11-nvidia-nvjitlink-cu12
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'nvidia-nvjitlink-cu12==12.8.93 --hash=sha256:81ff63371a7ebd6e6451970684f916be2eab07321b73c9d244dc2b4da7f73b88' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- numpy 2.5.5
FROM installer AS wheels-12-numpy
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'numpy==2.5.5 --hash=sha256:824025655df929268bfe6b47ed91a00d14209a6f760847cf150be446829e1ce4' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- cuda-bindings 12.9.4
FROM installer AS wheels-13-cuda-bindings
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'cuda-bindings==12.9.4 --hash=sha256:32bdc5a76906be4c61eb98f546a6786c5773a881f3b166486449b5d141e4a39f' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- nvidia-cuda-cupti-cu12 12.8.90
FROM installer AS wheels-14-nvidia-cuda-cupti-cu12
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'nvidia-cuda-cupti-cu12==12.8.90 --hash=sha256:ea0cb07ebda26bb9b29ba82cda34849e73c166c18162d3913575b0c9db9a6182' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- nvidia-cudnn-cu12 9.10.2.21
FROM installer AS wheels-15-nvidia-cudnn-cu12
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'nvidia-cudnn-cu12==9.10.2.21 --hash=sha256:949452be657fa16687d0930933f032835951ef0892b37d2d53824d1a84dc97a8' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- nvidia-nccl-cu12 2.27.5
FROM installer AS wheels-16-nvidia-nccl-cu12
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'nvidia-nccl-cu12==2.27.5 --hash=sha256:ad730cf15cb5d25fe849c6e6ca9eb5b76db16a80f13f425ac68d8e2e55624457' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- nvidia-cuda-runtime-cu12 12.8.90
FROM installer AS wheels-17-nvidia-cuda-runtime-cu12
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'nvidia-cuda-runtime-cu12==12.8.90 --hash=sha256:adade8dcbd0edf427b7204d480d6066d33902cab2a4707dcfc48a2d0fd44ab90' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- python: 11 wheels
FROM installer AS wheels-18-python
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'absl-py==2.5.1 --hash=sha256:721200f2f0e9960f2ca9dc3a2a706b201f5f75d812c158f059cbbe29eeafbdb8' \
      'grpcio==1.85.1 --hash=sha256:de520b1555ae445cdc4f8f1cc7ccba12a19992bfafa7c292ebe7fe1fe5da6c53' \
      'markdown==3.11.3 --hash=sha256:e1a31a112232504d753e5c01bb8c2de90d3f0ba986b063e10770cf7695b09e73' \
      'mpi4py==4.1.1 --hash=sha256:323ba354ba951c7736c033c5f2ad07bb1276f9696f0312ea6ff0a28cd0ab3e3d' \
      'packaging==26.3 --hash=sha256:d7193f7c8e4e93f444fde0262bf90af30e16fa0ad0ad44cb553c87339b23cd1c' \
      'pillow==13.0.0 --hash=sha256:5f56499c1a74d2b862beb0c33b8016f99d095858455df9d21583bbbc1c15b582' \
      'pip==26.3 --hash=sha256:f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13' \
      'protobuf==7.36.2 --hash=sha256:89f23aa53c24553a2416fd4fd1ec06f74fa42b14b546d8883128813f775bbfd2' \
      'tensorboard==2.21.0 --hash=sha256:7279316dcb6bd5bc391d623dea841531299cde1887310e8133bc34a996d32255' \
      'tensorboard-data-server==0.7.2 --hash=sha256:7e0610d205889588983836ec05dc098e80f97b7e7bbff7e994ebb78f578d0ddb' \
      'werkzeug==3.1.9 --hash=sha256:6392e50c78460ba618e5b21f08a71f59c99ce99cdc6cf6e3dd7e6ccca8754fab' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; } \
 && rm /out/opt/venv/bin/pip3.*

# ---- torch: 12 wheels
FROM installer AS wheels-19-torch
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'cuda-pathfinder==1.9.0 --hash=sha256:622df7440f7702f36b7a02a1699aa0b084fe04034d9939188fee9b16d0c36366' \
      'filelock==4.2.11 --hash=sha256:020e229e4bb9d410fc799c07ddf45fa217cba970278f40b30751d94f309b69e2' \
      'fsspec==2026.9.0 --hash=sha256:8dd6e646e99ea382bd85f97a45e6b526a442d79423a7dc673f1e2756d05fcb5f' \
      'jinja2==3.1.6 --hash=sha256:85ece4451f492d0c13c5dd7c13a64681a86afae63a5f347908daf103ce6d2f67' \
      'markupsafe==3.0.4 --hash=sha256:434139499bb20b502ed3baa1f169e618f924a97e7a777fea1a49446d80106cf6' \
      'mpmath==1.3.0 --hash=sha256:a0b2b9fe80bbcd81a6647ff13108738cfb482d481d826cc0e02f5b35e5c88d2c' \
      'networkx==3.7 --hash=sha256:e3fd2c13a7814cee3746340d8d7f8598a67f16a58bf47fb7f8793fab6efca1b0' \
      'nvidia-cufile-cu12==1.13.1.3 --hash=sha256:1d069003be650e131b21c932ec3d8969c1715379251f8d23a1860554b1cb24fc' \
      'nvidia-nvtx-cu12==12.8.90 --hash=sha256:5b17e2001cc0d751a5bc2c6ec6d26ad95913324a4adb86788c944f8ce9ba441f' \
      'setuptools==84.2.1 --hash=sha256:ca140b45d5325a9478f880e351484f62fef15f336462e449ca0c03c873d589c2' \
      'sympy==1.14.0 --hash=sha256:e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5' \
      'typing-extensions==4.16.0 --hash=sha256:481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.13/site-packages || true; }

# ---- the image
FROM os AS image
COPY --link --from=wheels-01-torch /out/ /
COPY --link --from=wheels-02-nvidia-cublas-cu12 /out/ /
COPY --link --from=wheels-03-nvidia-cusparse-cu12 /out/ /
COPY --link --from=wheels-04-nvidia-cusparselt-cu12 /out/ /
COPY --link --from=wheels-05-nvidia-cusolver-cu12 /out/ /
COPY --link --from=wheels-06-nvidia-cufft-cu12 /out/ /
COPY --link --from=wheels-07-triton /out/ /
COPY --link --from=wheels-08-nvidia-nvshmem-cu12 /out/ /
COPY --link --from=wheels-09-nvidia-cuda-nvrtc-cu12 /out/ /
COPY --link --from=wheels-10-nvidia-curand-cu12 /out/ /
COPY --link --from=wheels-11-nvidia-nvjitlink-cu12 /out/ /
COPY --link --from=wheels-12-numpy /out/ /
COPY --link --from=wheels-13-cuda-bindings /out/ /
COPY --link --from=wheels-14-nvidia-cuda-cupti-cu12 /out/ /
COPY --link --from=wheels-15-nvidia-cudnn-cu12 /out/ /
COPY --link --from=wheels-16-nvidia-nccl-cu12 /out/ /
COPY --link --from=wheels-17-nvidia-cuda-runtime-cu12 /out/ /
COPY --link --from=wheels-18-python /out/ /
COPY --link --from=wheels-19-torch /out/ /
COPY --chmod=0644 <<'IMAGEBUILDER_END_OF_FILE' /etc/imagebuilder/cuda-compat.sh
# Read by shells of this image: the entrypoint, mpirun's daemon, and login shells. Puts the folder of cuda-compat
# before LD_LIBRARY_PATH where the host's driver is older than the image's CUDA and cuda-compat works with it. NVIDIA's
# images have that folder. It is never in ld.so.conf: on a newer driver, CUDA would then end with error 803.

# Print the first folder whose libcuda suits a driver. Arguments: the file that describes the driver, and folders.
imagebuilder_compat_for() (
    file=$1
    shift
    for folder; do
        for library in "$folder"/libcuda.so.*.*; do
            [ -r "$library" ] && [ -r "$file" ] || continue
            own=${library##*/libcuda.so.}
            driver=$(sed -n 's/^NVRM version: .* \([0-9][0-9]*\.[0-9.]*\) .*/\1/p' "$file")
            case $driver,$own in
                ,* | *[!0-9.,]*) continue ;;
            esac
            # The driver branches that it works with: an ELF note lists them, as "driver":[535,550,570]. Older ones
            # have no note, but NVIDIA's images a variable with driver>=535,driver<536 for each branch. Without
            # either, every older driver counts, as for NVIDIA's container toolkit.
            branches=$(LC_ALL=C grep -a -o -m 1 '"driver":\[[0-9,]*\]' "$library" ||
                printf '%s\n' "${NVIDIA_REQUIRE_CUDA-}" | grep -o 'driver>=[0-9]*') || :
            [ -n "$branches" ] || branches=${driver%%.*}
            case " $(printf '%s' "$branches" | tr -c 0-9 ' ') " in
                *" ${driver%%.*} "*) ;;
                *) continue ;;
            esac
            # Older than the driver that it was made from.
            [ "$driver" != "$own" ] || continue
            [ "$(printf '%s\n' "$driver" "$own" | sort -V | head -n 1)" = "$driver" ] || continue
            printf '%s\n' "$folder"
            return
        done
    done
)

# Change LD_LIBRARY_PATH; the same arguments.
imagebuilder_use_compat() {
    set -- "$(imagebuilder_compat_for "$@")"
    case "$1,:${LD_LIBRARY_PATH-}:" in
        ,* | *":$1:"*) ;;
        *) export LD_LIBRARY_PATH="$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ;;
    esac
}
imagebuilder_use_compat /proc/driver/nvidia/version /usr/local/cuda/compat /usr/local/cuda-*/compat
IMAGEBUILDER_END_OF_FILE

COPY --chmod=0644 <<'IMAGEBUILDER_END_OF_FILE' /etc/imagebuilder/settings
# Read by imagebuilder-entrypoint; made from the recipe.
state=/run/imagebuilder
user=root
home=/root
port=22
# sshd wants every folder above its files closed to others, which /tmp is not, sticky or not. There the
# entrypoint itself makes sure that its folder is its own and 0700.
strict=yes
IMAGEBUILDER_END_OF_FILE

COPY --chmod=0644 <<'IMAGEBUILDER_END_OF_FILE' /etc/imagebuilder/sshd_config
# sshd for the nodes of a job; the entrypoint adds keys and environment, and includes this.
Port 22
AllowUsers root

# Keys and certificates only. Without PAM the container's own limits and environment hold in a session, and
# sshd needs no root.
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PermitEmptyPasswords no

# A large job logs in from everywhere at once, and starts many ranks through one connection.
MaxStartups 1024
MaxSessions 1024
LoginGraceTime 60
UseDNS no

# A peer that is gone is noticed after ten minutes; one that merely computes hard is not cut off.
ClientAliveInterval 60
ClientAliveCountMax 10

LogLevel INFO
PrintMotd no
PrintLastLog no
X11Forwarding no
AllowAgentForwarding no
PermitUserEnvironment no
Subsystem sftp internal-sftp
IMAGEBUILDER_END_OF_FILE

COPY --chmod=0644 <<'IMAGEBUILDER_END_OF_FILE' /etc/profile.d/imagebuilder.sh
# A login shell gets the variables of every other process in the container. /etc/profile has just set PATH
# anew: take back the one that this shell was started with, unless it came from `su -` and knows no venv.
PATH=$(tr '\0' '\n' 2>/dev/null <"/proc/$$/environ" | sed -n 's/^PATH=//p')
case ":$PATH:" in
    *:/opt/venv/bin:*) ;;
    *) PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin ;;
esac
export PATH
[ -n "${LANG+set}" ] || export LANG=C.UTF-8
[ -n "${NVIDIA_DRIVER_CAPABILITIES+set}" ] || export NVIDIA_DRIVER_CAPABILITIES=compute,utility
[ -n "${NVIDIA_GDRCOPY+set}" ] || export NVIDIA_GDRCOPY=enabled
[ -n "${NVIDIA_REQUIRE_CUDA+set}" ] || export NVIDIA_REQUIRE_CUDA='cuda>=12.8'
[ -n "${NVIDIA_VISIBLE_DEVICES+set}" ] || export NVIDIA_VISIBLE_DEVICES=all
[ -n "${OMPI_ALLOW_RUN_AS_ROOT+set}" ] || export OMPI_ALLOW_RUN_AS_ROOT=1
[ -n "${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM+set}" ] || export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
[ -n "${PRTE_ALLOW_RUN_AS_ROOT+set}" ] || export PRTE_ALLOW_RUN_AS_ROOT=1
[ -n "${PRTE_ALLOW_RUN_AS_ROOT_CONFIRM+set}" ] || export PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
[ -n "${PRTE_MCA_hwloc_default_binding_policy+set}" ] || export PRTE_MCA_hwloc_default_binding_policy=none
[ -n "${PRTE_MCA_prte_launch_agent+set}" ] || export PRTE_MCA_prte_launch_agent='imagebuilder-mpi-node prted'
[ -n "${PYTORCH_VERSION+set}" ] || export PYTORCH_VERSION=2.10.0
[ -n "${TINI_SUBREAPER+set}" ] || export TINI_SUBREAPER=1
[ -n "${VIRTUAL_ENV+set}" ] || export VIRTUAL_ENV=/opt/venv
. /etc/imagebuilder/cuda-compat.sh
IMAGEBUILDER_END_OF_FILE

COPY --chmod=0644 <<'IMAGEBUILDER_END_OF_FILE' /etc/ssh/ssh_config.d/imagebuilder.conf
# ssh from node to node, as the image's user; logins elsewhere (git@...) are left alone.

# Clusters give a node its name when it starts, and ssh gives up at once on a name without an address.
Match user root exec "/usr/local/bin/imagebuilder-await '%h'"

# The job brought, or its keys amount to, a list of its hosts: check them strictly.
Match user root exec "test -s /run/imagebuilder/known_hosts"
    StrictHostKeyChecking yes
    UserKnownHostsFile /run/imagebuilder/known_hosts

# The certificates that `imagebuilder keys` makes hold for any node, under this name.
Match user root exec "grep -qs '^@cert-authority imagebuilder-node[, ]' /run/imagebuilder/known_hosts"
    HostKeyAlias imagebuilder-node

Match user root
    StrictHostKeyChecking accept-new
    IdentityFile /run/imagebuilder/id_ed25519
    IdentityFile /run/imagebuilder/id_ecdsa
    IdentityFile /run/imagebuilder/id_rsa
    IdentityFile ~/.ssh/id_ed25519
    IdentityFile ~/.ssh/id_ecdsa
    IdentityFile ~/.ssh/id_rsa
    # Nodes of a job start in any order.
    ConnectionAttempts 20
    ConnectTimeout 10
    ServerAliveInterval 60
    ServerAliveCountMax 10
IMAGEBUILDER_END_OF_FILE

COPY --chmod=0644 <<'IMAGEBUILDER_END_OF_FILE' /etc/ssh/sshd_config.d/imagebuilder.conf
# For `/usr/sbin/sshd -De` without the entrypoint, which is how the Kubeflow MPI operator starts its workers.
# It mounts the job's keys at ~/.ssh, in a folder that everybody can write, so that StrictModes would refuse it.
# There are no host keys then: the job's own key takes their place, and only the job's nodes hold it.
HostKey /root/.ssh/id_ed25519
HostKey /root/.ssh/id_ecdsa
HostKey /root/.ssh/id_rsa
AuthorizedKeysFile /root/.ssh/authorized_keys
StrictModes no
PidFile none
# The image's variables; those that a container is started with need the entrypoint.
SetEnv "LANG=C.UTF-8" "NVIDIA_DRIVER_CAPABILITIES=compute,utility" "NVIDIA_GDRCOPY=enabled" "NVIDIA_REQUIRE_CUDA=cuda>=12.8" "NVIDIA_VISIBLE_DEVICES=all" "OMPI_ALLOW_RUN_AS_ROOT=1" "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" "PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" "PRTE_ALLOW_RUN_AS_ROOT=1" "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1" "PRTE_MCA_hwloc_default_binding_policy=none" "PRTE_MCA_prte_launch_agent=imagebuilder-mpi-node prted" "PYTORCH_VERSION=2.10.0" "TINI_SUBREAPER=1" "VIRTUAL_ENV=/opt/venv"
Include /etc/imagebuilder/sshd_config
IMAGEBUILDER_END_OF_FILE

COPY --chmod=0755 <<'IMAGEBUILDER_END_OF_FILE' /usr/local/bin/imagebuilder-await
#!/bin/sh
# Waits until the name of a host has an address: `imagebuilder-await HOST`. ssh_config runs it before a login to a node.
# It waits IMAGEBUILDER_WAIT seconds at most, and then leaves it to ssh to report the name.
limit=${IMAGEBUILDER_WAIT:-60}
start=$(date +%s)
said=
until getent ahosts -- "$1" >/dev/null 2>&1; do
    waited=$(($(date +%s) - start))
    [ "$waited" -lt "$limit" ] || break
    if [ -z "$said" ] && [ "$waited" -ge 3 ]; then
        said=yes
        echo "imagebuilder-await: $1 has no address yet; waiting for it up to $limit s" >&2
    fi
    sleep 0.5
done
IMAGEBUILDER_END_OF_FILE

COPY --chmod=0755 <<'IMAGEBUILDER_END_OF_FILE' /usr/local/bin/imagebuilder-entrypoint
#!/bin/bash
# Starts a container of this image: takes the job's ssh keys from where they are mounted, starts sshd for them,
# and then becomes the command. Without a command the container is an ssh node, and sshd is all that it runs.
# docs/explanation/ssh.md describes the contract; the variables are IMAGEBUILDER_KEYS and IMAGEBUILDER_SSHD.
set -u

# What differs from image to image: state (a private folder, made here), user, home, port, strict.
. /etc/imagebuilder/settings
. /etc/imagebuilder/cuda-compat.sh

readonly sshd=/usr/sbin/sshd
readonly kinds='ed25519 ecdsa rsa'
readonly remedy="give it to that uid (chown -R $EUID), or in Kubernetes the secret \`defaultMode: 0444\`"
readonly ex_config=78 # sysexits.h; far from the codes that commands and docker use

main() {
    local foreground=no
    case ${1-} in
        '') foreground=yes ;;
        # An operator's idea of how a node starts: ours does that and knows the keys. With a configuration of
        # its own (-f) it is a command like any other, and has the port for itself.
        sshd | "$sshd") [[ " $* " == *' -f'* ]] && IMAGEBUILDER_SSHD=off || foreground=yes ;;
    esac
    if [[ $foreground == yes && ${IMAGEBUILDER_SSHD-} == off ]]; then
        die 'IMAGEBUILDER_SSHD=off and no command: there is nothing to run'
    fi

    if ! make_state; then
        [[ $foreground == yes ]] && die "sshd cannot run: $problem"
        # A job on one node needs no ssh, so that this is no reason to stop it.
        [[ ${IMAGEBUILDER_SSHD-} == off ]] || say "no ssh in this container: $problem"
        exec "$@"
    fi
    if [[ -n $named_home ]]; then
        # Where the user has no name, the engine sets HOME to `/`. Only group 0 may enter the image's home, and
        # mpirun ends with a segmentation fault in a working folder that it may not enter.
        [[ -w ${HOME-} ]] || export HOME="$named_home"
        [[ -x . ]] || cd -- "$named_home" || exit
    fi

    # In a subshell: the command must not inherit the umask.
    (umask 077 && take_keys && write_sshd_config) || exit
    [[ $foreground == yes ]] && exec "$sshd" -D -e -f "$state/sshd_config"
    [[ ${IMAGEBUILDER_SSHD-} == off ]] || start_sshd
    exec "$@"
}

say() {
    printf 'imagebuilder-entrypoint: %s\n' "$*" >&2
}

die() {
    say "$@"
    exit "$ex_config"
}

# Make the private folder, empty: after a restart the old keys may be other ones than the mounted. Sets `problem`,
# and `named_home`.
make_state() {
    problem=
    if [[ $EUID -ne 0 && $user == root ]]; then
        problem="this image's sshd is root's, and the container runs as uid $EUID; "
        problem+='build it with `ssh: {user: ..., port: 2222}` in the recipe'
    elif ! mkdir -m 0700 -- "$state" 2>/dev/null && [[ ! -d $state ]]; then
        problem="$state cannot be made; with a read-only root mount a tmpfs at ${state%/*}"
    # Somebody else may have been quicker where everybody can write: use only what is ours and no link.
    elif [[ -L $state || ! -O $state ]]; then
        problem="$state belongs to somebody else; remove it"
    elif ! chmod 0700 -- "$state" || ! rm -rf -- "$state"/*; then
        problem="$state cannot be written"
    # Where a tmpfs covers /run, the folder of the image is hidden.
    elif [[ $EUID -eq 0 ]] && ! mkdir -p -m 0755 /run/sshd; then
        problem='/run/sshd cannot be made; with a read-only root mount a tmpfs at /run'
    elif ! name_user; then
        problem="uid $EUID has no name to log in with, and ids below 500 cannot get one; "
        problem+="run the container as \`$user\`, or with an id from 500 on"
    fi
    [[ -z $problem ]]
}

# Without a name neither ssh nor sshd works. A user id that the cluster chose has none, or one that the engine made
# up: CRI-O's cannot log in, and Podman's is a number. It gets the name of the image's user: /etc/nsswitch.conf
# asks libnss-extrausers first, which reads this file.
name_user() {
    local entry
    named_home=
    entry=$(getent passwd "$EUID")
    [[ -z $entry || $entry == */nologin || $entry =~ ^[0-9]+: ]] || return 0
    # Only group 0 may write to the home of the image.
    named_home=$home
    [[ -w $home ]] || { named_home=$state/home && mkdir -m 0700 -- "$named_home"; } || return
    # That library takes no group below 500 either; this one is nogroup. What counts is the group that a process has.
    printf '%s:x:%d:65534::%s:/bin/bash\n' "$user" "$EUID" "$named_home" >"$state/passwd"
    [[ $(getent passwd "$EUID") == "$user:"* ]]
}

# Copy the job's keys with the modes that ssh insists on: mounted ones are often 0644, read-only, not ours.
take_keys() {
    local folder kind name
    folder=$(find_keys) || exit
    if [[ -n $folder ]]; then
        for kind in $kinds; do
            take_private "$folder/id_$kind" "$state/id_$kind"
            take_private "$folder/ssh_host_${kind}_key" "$state/ssh_host_${kind}_key"
        done
        for name in authorized_keys known_hosts user_ca.pub; do
            take "$folder/$name" "$state/$name"
        done
        # A key pair alone is enough of a job: its nodes let each other in.
        if [[ ! -e $state/authorized_keys && ! -e $state/user_ca.pub ]]; then
            for kind in $kinds; do
                [[ ! -e $state/id_$kind.pub ]] || cat -- "$state/id_$kind.pub" >>"$state/authorized_keys"
            done
        fi
    fi
    complete_host_keys
}

# Print the folder that holds the job's keys; nothing when there is none.
find_keys() {
    local folder
    case ${IMAGEBUILDER_KEYS-} in
        none) return ;;
        '') ;;
        *)
            [[ -d $IMAGEBUILDER_KEYS && -x $IMAGEBUILDER_KEYS ]] ||
                die "IMAGEBUILDER_KEYS names $IMAGEBUILDER_KEYS, which is no folder that uid $EUID can enter"
            holds_keys "$IMAGEBUILDER_KEYS" ||
                die "IMAGEBUILDER_KEYS names $IMAGEBUILDER_KEYS, which holds no id_* and no authorized_keys"
            printf '%s' "$IMAGEBUILDER_KEYS"
            return
            ;;
    esac
    for folder in /run/secrets/imagebuilder "$home/.ssh"; do
        [[ ! -d $folder || -x $folder ]] || die "uid $EUID cannot enter $folder; $remedy"
        if holds_keys "$folder"; then
            printf '%s' "$folder"
            return
        fi
    done
}

holds_keys() {
    local name
    for name in id_ed25519 id_ecdsa id_rsa authorized_keys user_ca.pub; do
        [[ -e $1/$name ]] && return
    done
    return 1
}

take() {
    [[ -e $1 ]] || return 0
    [[ -r $1 ]] || die "uid $EUID cannot read $1; $remedy"
    cat -- "$1" >"$2" || die "$1 cannot be copied to $2"
}

take_private() {
    [[ -e $1 ]] || return 0
    take "$1" "$2"
    # Made from the private one, so that it fits, and so that a useless key is noticed here and not in a rank.
    ssh-keygen -y -P '' -f "$2" >"$2.pub" 2>/dev/null ||
        die "$1 is no private key that works without a passphrase"
    take "$1-cert.pub" "$2-cert.pub"
}

# What the nodes prove themselves with, and what they check it against.
complete_host_keys() {
    local kind
    compgen -G "$state/ssh_host_*_key" >/dev/null && return
    for kind in $kinds; do
        [[ -e $state/id_$kind ]] || continue
        # No host keys, but a secret that only this job's nodes hold: as host key it keeps strict checking on.
        cp -- "$state/id_$kind" "$state/ssh_host_${kind}_key"
        printf '* %s\n' "$(<"$state/id_$kind.pub")" >>"$state/known_hosts"
    done
    compgen -G "$state/ssh_host_*_key" >/dev/null && return
    ssh-keygen -q -t ed25519 -N '' -C "$HOSTNAME" -f "$state/ssh_host_ed25519_key" ||
        die 'a host key cannot be made'
}

# sshd takes the first value of a setting: what is here goes before what every container has.
write_sshd_config() {
    local key authorized=none
    [[ -e $state/authorized_keys ]] && authorized=$state/authorized_keys
    {
        for key in "$state"/ssh_host_*_key; do
            printf 'HostKey %s\n' "$key"
            [[ -e $key-cert.pub ]] && printf 'HostCertificate %s\n' "$key-cert.pub"
        done
        printf 'AuthorizedKeysFile %s\n' "$authorized"
        [[ -e $state/user_ca.pub ]] && printf 'TrustedUserCAKeys %s\n' "$state/user_ca.pub"
        printf 'StrictModes %s\n' "$strict"
        printf 'PidFile %s\n' "$state/sshd.pid"
        print_environment
        printf 'Include /etc/imagebuilder/sshd_config\n'
    } >"$state/sshd_config" || die "$state/sshd_config cannot be written"
    # Sixty-four ranks that arrive at once, and a probe that connects and hangs up, are no attack. OpenSSH older
    # than 9.8 has no penalties and would stop at the word: it also has no -G or says that it knows no such option.
    if "$sshd" -G -f "$state/sshd_config" -o PerSourcePenalties=no >/dev/null 2>&1; then
        printf 'PerSourcePenalties no\n' >>"$state/sshd_config"
    fi
}

# Print one SetEnv with the variables of the command, so that ssh sessions and ranks get the same.
# What a login makes for itself stays out.
print_environment() {
    local pairs
    mapfile -d '' -t pairs < <(env -0)
    local LC_ALL=C line=
    # The long ones come last, for they may find no room: PATH must.
    add_variables 0 4096
    add_variables 4096 1000000000
    [[ -z $line ]] || printf 'SetEnv%s\n' "$line"
}

# Add to `line` those of `pairs` that are at least as long as the first number and shorter than the second.
add_variables() {
    local pair name
    for pair in "${pairs[@]}"; do
        ((${#pair} >= $1 && ${#pair} < $2)) || continue
        name=${pair%%=*}
        case $name in
            '' | HOME | USER | LOGNAME | SHELL | MAIL | TERM | HOSTNAME | PWD | OLDPWD | SHLVL | _ | SSH_*) continue ;;
        esac
        if [[ $pair == *[$'\n\r']* ]]; then
            say "$name is not passed on to ssh sessions and remote ranks: its value has more than one line"
            continue
        fi
        pair=${pair//\\/\\\\}
        pair=${pair//\"/\\\"}
        # sshd hands its settings to each session in one message, and refuses one above 256 KiB.
        if ((${#line} + ${#pair} > 200000)); then
            say "$name is not passed on to ssh sessions and remote ranks: together the variables are too long"
            continue
        fi
        line+=" \"$pair\""
    done
}

# Start sshd beside the command: as a daemon, so that it is not a child that the command may wait for, and has
# no terminal whose Ctrl-C would end it.
start_sshd() {
    local i
    "$sshd" -f "$state/sshd_config" -E "$state/sshd.log"
    for ((i = 0; i < 100; i++)); do
        # Written once it listens.
        [[ -s $state/sshd.pid ]] && return
        sleep 0.02
    done
    say "sshd does not run: $(tail -n 3 "$state/sshd.log" 2>&1)"
}

main "$@"
IMAGEBUILDER_END_OF_FILE

COPY --chmod=0755 <<'IMAGEBUILDER_END_OF_FILE' /usr/local/bin/imagebuilder-mpi-node
#!/bin/sh
# mpirun starts its daemon on the other nodes through this (PRTE_MCA_prte_launch_agent).
#
# Over ssh, PRRTE 3 puts its own two folders before LD_LIBRARY_PATH, and with an empty rest after the last colon
# the current folder too, on every node but the one that mpirun runs on: ranks would then find other libraries
# than the first one does. Debian's, and /usr/local's of an Open MPI that was compiled, are in the loader's own
# path, so that nothing is lost by taking them out.
for name in LD_LIBRARY_PATH DYLD_LIBRARY_PATH; do
    eval "value=\${$name-}"
    value=${value#/usr/lib:/usr/lib/*/pmix2/lib:}
    value=${value#/usr/local/lib:/usr/local/lib:}
    if [ -n "$value" ]; then
        export "$name=$value"
    else
        unset "$name"
    fi
done
unset name value
# For an sshd that an operator started without the entrypoint.
. /etc/imagebuilder/cuda-compat.sh
exec "$@"
IMAGEBUILDER_END_OF_FILE

RUN ln -sfn /etc/mpi/hostfile /etc/openmpi/prte-default-hostfile \
 && install -d -m 0755 /run/sshd \
 && ln -sfn /usr/bin/g++-14 /usr/local/bin/c++ \
 && ln -sfn /usr/bin/gcc-14 /usr/local/bin/cc \
 && ln -sfn /usr/bin/cpp-14 /usr/local/bin/cpp \
 && ln -sfn /usr/bin/gfortran-14 /usr/local/bin/f77 \
 && ln -sfn /usr/bin/gfortran-14 /usr/local/bin/f95 \
 && ln -sfn /usr/bin/g++-14 /usr/local/bin/g++ \
 && ln -sfn /usr/bin/gcc-14 /usr/local/bin/gcc \
 && ln -sfn /usr/bin/gcc-ar-14 /usr/local/bin/gcc-ar \
 && ln -sfn /usr/bin/gcc-nm-14 /usr/local/bin/gcc-nm \
 && ln -sfn /usr/bin/gcc-ranlib-14 /usr/local/bin/gcc-ranlib \
 && ln -sfn /usr/bin/gcov-14 /usr/local/bin/gcov \
 && ln -sfn /usr/bin/gfortran-14 /usr/local/bin/gfortran
ENV LANG="C.UTF-8" \
    NVIDIA_DRIVER_CAPABILITIES="compute,utility" \
    NVIDIA_GDRCOPY="enabled" \
    NVIDIA_REQUIRE_CUDA="cuda>=12.8" \
    NVIDIA_VISIBLE_DEVICES="all" \
    OMPI_ALLOW_RUN_AS_ROOT="1" \
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1" \
    PATH="/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    PRTE_ALLOW_RUN_AS_ROOT="1" \
    PRTE_ALLOW_RUN_AS_ROOT_CONFIRM="1" \
    PRTE_MCA_hwloc_default_binding_policy="none" \
    PRTE_MCA_prte_launch_agent="imagebuilder-mpi-node prted" \
    PYTORCH_VERSION="2.10.0" \
    TINI_SUBREAPER="1" \
    VIRTUAL_ENV="/opt/venv"
LABEL org.imagebuilder.lock="737abc9791192dbe53290206bad5f895e17c21905dac547b7f72064ad03d5843" \
      org.imagebuilder.pin.cuda="12.8.90" \
      org.imagebuilder.pin.cudnn="9.10.2.21" \
      org.imagebuilder.pin.gcc="14.2.0" \
      org.imagebuilder.pin.nccl="2.27.5" \
      org.imagebuilder.pin.openmpi="5.0.7" \
      org.imagebuilder.pin.python="3.13.5" \
      org.imagebuilder.pin.ssh="10.0" \
      org.imagebuilder.pin.torch="2.10.0" \
      org.imagebuilder.recipe="cuda12-torch" \
      org.imagebuilder.ssh.port="22" \
      org.imagebuilder.ssh.user="root" \
      org.opencontainers.image.base.name="debian:trixie" \
      org.opencontainers.image.created="2026-11-21T02:10:46Z" \
      org.opencontainers.image.description="PyTorch for CUDA 12 with NCCL, Open MPI and ssh, for training on several nodes" \
      org.opencontainers.image.title="cuda12-torch" \
      org.opencontainers.image.version="torch2.10.0-cu12.8-py3.13-trixie"
EXPOSE 22
USER 0:0
WORKDIR /root
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/local/bin/imagebuilder-entrypoint"]
