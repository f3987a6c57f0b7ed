# mxnet: rendered by imagebuilder from its recipe and lock 8a06da631b45. Change the recipe, not this file.
#
#   docker buildx build --file mxnet.Dockerfile --tag mxnet:mxnet1.9.1-py3.11-bookworm .
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
#   --build-context debian:bookworm=oci-layout://FOLDER         the base, as an OCI image
#   --build-context debs=FOLDER                              the packages, as files that end in .deb

# ---- the packages as files, if a build context of this name replaces this empty stage
FROM scratch AS debs

# ---- debian bookworm, 225 packages
FROM debian:bookworm AS os
RUN --mount=type=bind,from=debs,target=/run/debs \
    --mount=type=secret,id=apt,target=/run/secrets/apt.conf \
    --mount=type=secret,id=sources,target=/run/secrets/apt.sources \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    --mount=type=cache,target=/var/cache/apt,sharing=locked,id=apt-bookworm \
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
    adduser=3.134 \
    apt=2.6.2 \
    autoconf=2.71-3 \
    automake=1:1.16.5-1.3 \
    autotools-dev=20220109.1 \
    base-files=12.4+deb12u15 \
    base-passwd=3.6.1 \
    bash=5.2.15-2+b13 \
    binutils=2.40-2 \
    binutils-common=2.40-2 \
    binutils-x86-64-linux-gnu=2.40-2 \
    bsdutils=1:2.38.1-5+deb12u3 \
    ca-certificates=20250419~deb12u2 \
    coreutils=9.1-1 \
    cpp-12=12.2.0-14+deb12u1 \
    dash=0.5.12-2 \
    debconf=1.5.82 \
    debian-archive-keyring=2023.3+deb12u2 \
    debianutils=5.7-0.5~deb12u1 \
    diffutils=1:3.8-4 \
    dpkg=1.21.23 \
    findutils=4.9.0-4 \
    gcc-12=12.2.0-14+deb12u1 \
    gcc-12-base=12.2.0-14+deb12u1 \
    gfortran-12=12.2.0-14+deb12u1 \
    gpgv=2.2.40-1.1+deb12u2 \
    grep=3.8-5 \
    gzip=1.12-1 \
    hostname=3.23+nmu1 \
    ibverbs-providers=44.0-2 \
    init-system-helpers=1.65.2+deb12u1 \
    iproute2=6.1.0-3 \
    libacl1=2.3.1-3 \
    libapt-pkg6.0=2.6.2 \
    libasan8=12.2.0-14+deb12u1 \
    libatomic1=12.2.0-14+deb12u1 \
    libattr1=1:2.5.1-4 \
    libaudit-common=1:3.0.9-1 \
    libaudit1=1:3.0.9-1 \
    libbinutils=2.40-2 \
    libblkid1=2.38.1-5+deb12u3 \
    libbpf1=1:1.1.2-0+deb12u1 \
    libbsd0=0.11.7-2 \
    libbz2-1.0=1.0.8-5+b1 \
    libc-bin=2.36-9+deb12u14 \
    libc-dev-bin=2.36-9+deb12u14 \
    libc6=2.36-9+deb12u14 \
    libc6-dev=2.36-9+deb12u14 \
    libcap-ng0=0.8.3-1+b3 \
    libcap2=1:2.66-4+deb12u3+b1 \
    libcap2-bin=1:2.66-4+deb12u3+b1 \
    libcbor0.8=0.8.0-2+b1 \
    libcc1-0=12.2.0-14+deb12u1 \
    libcom-err2=1.47.0-2+b2 \
    libcrypt-dev=1:4.4.33-2 \
    libcrypt1=1:4.4.33-2 \
    libctf-nobfd0=2.40-2 \
    libctf0=2.40-2 \
    libdb5.3=5.3.28+dfsg2-1 \
    libdebconfclient0=0.270 \
    libedit2=3.1-20221030-2 \
    libelf1=0.188-2.1 \
    libevent-2.1-7=2.1.12-stable-8+deb12u1 \
    libevent-core-2.1-7=2.1.12-stable-8+deb12u1 \
    libevent-dev=2.1.12-stable-8+deb12u1 \
    libevent-extra-2.1-7=2.1.12-stable-8+deb12u1 \
    libevent-openssl-2.1-7=2.1.12-stable-8+deb12u1 \
    libevent-pthreads-2.1-7=2.1.12-stable-8+deb12u1 \
    libexpat1=2.5.0-1+deb12u5 \
    libfabric1=1.17.0-3 \
    libffi8=3.4.4-1 \
    libfido2-1=1.12.0-2+b1 \
    libfile-find-rule-perl=0.34-4~deb12u1 \
    libgcc-12-dev=12.2.0-14+deb12u1 \
    libgcc-s1=12.2.0-14+deb12u1 \
    libgcrypt20=1.10.1-3+deb12u1 \
    libgdbm-compat4=1.23-3 \
    libgdbm6=1.23-3 \
    libgfortran-12-dev=12.2.0-14+deb12u1 \
    libgfortran5=12.2.0-14+deb12u1 \
    libgmp10=2:6.2.1+dfsg1-1.1 \
    libgnutls30=3.7.9-2+deb12u7 \
    libgomp1=12.2.0-14+deb12u1 \
    libgpg-error0=1.46-1 \
    libgprofng0=2.40-2 \
    libgssapi-krb5-2=1.20.1-2+deb12u5 \
    libhogweed6=3.8.1-2 \
    libhwloc-dev=2.9.0-1 \
    libhwloc-plugins=2.9.0-1 \
    libhwloc15=2.9.0-1 \
    libibverbs-dev=44.0-2 \
    libibverbs1=44.0-2 \
    libicu72=72.1-3+deb12u1 \
    libidn2-0=2.3.3-1+b1 \
    libisl23=0.25-1.1 \
    libitm1=12.2.0-14+deb12u1 \
    libjansson4=2.14-2 \
    libjs-jquery=3.6.1+dfsg+~3.5.14-1 \
    libjs-jquery-ui=1.13.2+dfsg-1 \
    libk5crypto3=1.20.1-2+deb12u5 \
    libkeyutils1=1.6.3-2 \
    libkrb5-3=1.20.1-2+deb12u5 \
    libkrb5support0=1.20.1-2+deb12u5 \
    liblsan0=12.2.0-14+deb12u1 \
    libltdl-dev=2.4.7-7~deb12u1 \
    libltdl7=2.4.7-7~deb12u1 \
    liblz4-1=1.9.4-1 \
    liblzma5=5.4.1-1+deb12u2 \
    libmd0=1.0.4-2 \
    libmnl0=1.0.4-3 \
    libmount1=2.38.1-5+deb12u3 \
    libmpc3=1.3.1-1 \
    libmpfr6=4.2.0-1 \
    libmunge2=0.5.15-2+deb12u1 \
    libncursesw6=6.4-4 \
    libnettle8=3.8.1-2 \
    libnl-3-200=3.7.0-0.2+b1 \
    libnl-3-dev=3.7.0-0.2+b1 \
    libnl-route-3-200=3.7.0-0.2+b1 \
    libnl-route-3-dev=3.7.0-0.2+b1 \
    libnsl-dev=1.3.0-2 \
    libnsl2=1.3.0-2 \
    libnss-extrausers=0.6-4.1 \
    libnuma-dev=2.0.16-1 \
    libnuma1=2.0.16-1 \
    libnumber-compare-perl=0.03-3 \
    libopenmpi-dev=4.1.4-3+b1 \
    libopenmpi3=4.1.4-3+b1 \
    libp11-kit0=0.24.1-2 \
    libpam-modules=1.5.2-6+deb12u2 \
    libpam-modules-bin=1.5.2-6+deb12u2 \
    libpam-runtime=1.5.2-6+deb12u2 \
    libpam0g=1.5.2-6+deb12u2 \
    libpciaccess0=0.17-2 \
    libpcre2-8-0=10.42-1+deb12u2 \
    libperl5.36=5.36.0-7+deb12u4 \
    libpmix-dev=4.2.2-1+deb12u1 \
    libpmix2=4.2.2-1+deb12u1 \
    libproc2-0=2:4.0.2-3 \
    libpsm-infinipath1=3.3+20.604758e7-6.2 \
    libpsm2-2=11.2.185-2 \
    libpython3-stdlib=3.11.2-1+b1 \
    libpython3.11-minimal=3.11.2-6+deb12u9 \
    libpython3.11-stdlib=3.11.2-6+deb12u9 \
    libquadmath0=12.2.0-14+deb12u1 \
    librdmacm1=44.0-2 \
    libreadline8=8.2-1.3 \
    libseccomp2=2.5.4-1+deb12u1 \
    libselinux1=3.4-1+b6 \
    libsemanage-common=3.4-1 \
    libsemanage2=3.4-1+b5 \
    libsepol2=3.4-2.1 \
    libsmartcols1=2.38.1-5+deb12u3 \
    libsqlite3-0=3.40.1-2+deb12u2 \
    libssl3=3.0.22-1~deb12u2 \
    libstdc++6=12.2.0-14+deb12u1 \
    libsystemd0=252.39-1~deb12u2 \
    libtasn1-6=4.19.0-2+deb12u1 \
    libtext-glob-perl=0.11-3 \
    libtinfo6=6.4-4 \
    libtirpc-common=1.3.3+ds-1 \
    libtirpc-dev=1.3.3+ds-1 \
    libtirpc3=1.3.3+ds-1 \
    libtsan2=12.2.0-14+deb12u1 \
    libubsan1=12.2.0-14+deb12u1 \
    libucx0=1.13.1-1 \
    libudev1=252.39-1~deb12u2 \
    libunistring2=1.0-2 \
    libuuid1=2.38.1-5+deb12u3 \
    libwrap0=7.6.q-32 \
    libx11-6=2:1.8.4-2+deb12u2 \
    libx11-data=2:1.8.4-2+deb12u2 \
    libxau6=1:1.0.9-1 \
    libxcb1=1.15-1 \
    libxdmcp6=1:1.1.2-3 \
    libxext6=2:1.3.4-1+b1 \
    libxml2=2.9.14+dfsg-1.3~deb12u6 \
    libxnvctrl0=525.85.05-3~deb12u1 \
    libxtables12=1.8.9-2 \
    libxxhash0=0.8.1-1 \
    libzstd1=1.5.4+dfsg2-5 \
    linux-libc-dev=6.1.192-2 \
    login=1:4.13+dfsg1-1+deb12u2 \
    m4=1.4.19-3 \
    mawk=1.3.4.20200120-3.1 \
    media-types=10.0.0 \
    ncurses-base=6.4-4 \
    ncurses-bin=6.4-4 \
    netbase=6.4 \
    ocl-icd-libopencl1=2.3.1-1 \
    openmpi-bin=4.1.4-3+b1 \
    openmpi-common=4.1.4-3 \
    openssh-client=1:9.2p1-2+deb12u10 \
    openssh-server=1:9.2p1-2+deb12u10 \
    openssh-sftp-server=1:9.2p1-2+deb12u10 \
    openssl=3.0.22-1~deb12u2 \
    passwd=1:4.13+dfsg1-1+deb12u2 \
    perl=5.36.0-7+deb12u4 \
    perl-base=5.36.0-7+deb12u4 \
    perl-modules-5.36=5.36.0-7+deb12u4 \
    procps=2:4.0.2-3 \
    python3=3.11.2-1+b1 \
    python3-distutils=3.11.2-3 \
    python3-lib2to3=3.11.2-3 \
    python3-minimal=3.11.2-1+b1 \
    python3-pip-whl=23.0.1+dfsg-1 \
    python3-setuptools-whl=66.1.1-1+deb12u2 \
    python3-venv=3.11.2-1+b1 \
    python3.11=3.11.2-6+deb12u9 \
    python3.11-minimal=3.11.2-6+deb12u9 \
    python3.11-venv=3.11.2-6+deb12u9 \
    readline-common=8.2-1.3 \
    rpcsvc-proto=1.4.3-1 \
    runit-helper=2.15.2 \
    sed=4.9-1+deb12u1 \
    sensible-utils=0.0.17+nmu1 \
    sysvinit-utils=3.06-4 \
    tar=1.34+dfsg-1.2+deb12u1 \
    tini=0.19.0-1+b3 \
    ucf=3.0043+nmu1+deb12u1 \
    usrmerge=37~deb12u1 \
    util-linux=2.38.1-5+deb12u3 \
    util-linux-extra=2.38.1-5+deb12u3 \
    zlib1g=1:1.2.13.dfsg-1 \
    zlib1g-dev=1:1.2.13.dfsg-1
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

# ---- mxnet 1.9.1
FROM installer AS wheels-01-mxnet
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'mxnet==1.9.1 --hash=sha256:65d5dac162c87a14d138d888b54494d515036d9047ae804ff51f770bd02197a6' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.11/site-packages || true; }

# ---- numpy 1.23.5
FROM installer AS wheels-02-numpy
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'numpy==1.23.5 --hash=sha256:58f545efd1108e647604a1b5aa809591ccd2540f468a880bedb97247e72db387' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.11/site-packages || true; }

# ---- mxnet: 6 wheels
FROM installer AS wheels-03-mxnet
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'certifi==2026.10.18 --hash=sha256:73191c47aaa79da394e8fee2dbc2ec827432cab56311122c9e47abf79e390f62' \
      'charset-normalizer==3.5.2 --hash=sha256:211d5a3eb6af8f513b8d4ca19a8c1b7accab1b5f0d3175f9826b03c1a920dc1f' \
      'graphviz==0.8.4 --hash=sha256:7caa53f0b0be42c5f2eaa3f3d71dcc863b15bacceb5d531c2ad7519e1980ff82' \
      'idna==3.20 --hash=sha256:ab7ae7122974553370f0bdb919e1a960b2cd1bc1ef0276416d896db81c14582c' \
      'requests==2.34.2 --hash=sha256:2a0d60c172f83ac6ab31e4554906c0f3b3588d37b5cb939b1c061f4907e278e0' \
      'urllib3==2.8.0 --hash=sha256:0cf3cae568d36aa9576b28dfb35f11328f1cb974ca7647d9475ebb86c75ac6e3' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.11/site-packages || true; }

# ---- pip 26.3
FROM installer AS wheels-04-pip
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt \
    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    umask 002; \
    printf '%s\n' \
      'pip==26.3 --hash=sha256:f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13' \
      >/tmp/requirements.txt \
 && /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \
      --no-deps --no-compile --only-binary :all: --require-hashes --requirement /tmp/requirements.txt \
 && find /out -name '*.py' -exec touch --date=@0 {} + \
 && { PYTHONHASHSEED=0 /opt/venv/bin/python -W ignore -m compileall -qq -s /out -p / \
      /out/opt/venv/lib/python3.11/site-packages || true; } \
 && rm /out/opt/venv/bin/pip3.*

# ---- the image
FROM os AS image
COPY --link --from=wheels-01-mxnet /out/ /
COPY --link --from=wheels-02-numpy /out/ /
COPY --link --from=wheels-03-mxnet /out/ /
COPY --link --from=wheels-04-pip /out/ /
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
[ -n "${OMPI_ALLOW_RUN_AS_ROOT+set}" ] || export OMPI_ALLOW_RUN_AS_ROOT=1
[ -n "${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM+set}" ] || export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
[ -n "${PRTE_ALLOW_RUN_AS_ROOT+set}" ] || export PRTE_ALLOW_RUN_AS_ROOT=1
[ -n "${PRTE_ALLOW_RUN_AS_ROOT_CONFIRM+set}" ] || export PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
[ -n "${PRTE_MCA_hwloc_default_binding_policy+set}" ] || export PRTE_MCA_hwloc_default_binding_policy=none
[ -n "${PRTE_MCA_prte_launch_agent+set}" ] || export PRTE_MCA_prte_launch_agent='imagebuilder-mpi-node prted'
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
SetEnv "LANG=C.UTF-8" "OMPI_ALLOW_RUN_AS_ROOT=1" "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" "PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" "PRTE_ALLOW_RUN_AS_ROOT=1" "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1" "PRTE_MCA_hwloc_default_binding_policy=none" "PRTE_MCA_prte_launch_agent=imagebuilder-mpi-node prted" "TINI_SUBREAPER=1" "VIRTUAL_ENV=/opt/venv"
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
 && install -d -m 0755 /run/sshd
ENV LANG="C.UTF-8" \
    OMPI_ALLOW_RUN_AS_ROOT="1" \
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1" \
    PATH="/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    PRTE_ALLOW_RUN_AS_ROOT="1" \
    PRTE_ALLOW_RUN_AS_ROOT_CONFIRM="1" \
    PRTE_MCA_hwloc_default_binding_policy="none" \
    PRTE_MCA_prte_launch_agent="imagebuilder-mpi-node prted" \
    TINI_SUBREAPER="1" \
    VIRTUAL_ENV="/opt/venv"
LABEL org.imagebuilder.lock="8a06da631b458613419124af40f4740aa7d39ec8069824e087dff2f1e8c407fc" \
      org.imagebuilder.pin.mxnet="1.9.1" \
      org.imagebuilder.pin.openmpi="4.1.4" \
      org.imagebuilder.pin.python="3.11.2" \
      org.imagebuilder.pin.ssh="9.2" \
      org.imagebuilder.recipe="mxnet" \
      org.imagebuilder.ssh.port="22" \
      org.imagebuilder.ssh.user="root" \
      org.opencontainers.image.base.name="debian:bookworm" \
      org.opencontainers.image.created="2026-11-21T02:10:46Z" \
      org.opencontainers.image.description="Apache MXNet 1.9.1 (frozen upstream) with Open MPI and ssh, for training on several nodes" \
      org.opencontainers.image.title="mxnet" \
      org.opencontainers.image.version="mxnet1.9.1-py3.11-bookworm"
EXPOSE 22
USER 0:0
WORKDIR /root
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/local/bin/imagebuilder-entrypoint"]
