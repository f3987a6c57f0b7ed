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
