# To be sourced. Installs packages of Debian, for the scripts beside this one.

# apt_install PACKAGE...: gives 1 where it cannot, with the reason on stdout.
apt_install() {
    command -v apt-get >/dev/null || { echo "there is no apt-get; install $* by hand"; return 1; }
    local attempt apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq)
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || { echo "neither root nor sudo without a password; install $* by hand"; return 1; }
        apt=(sudo -n "${apt[@]}")
    fi
    for attempt in 1 2 3; do # a mirror may be away for a moment, or another apt-get hold the lock
        "${apt[@]}" update >/dev/null && "${apt[@]}" install --no-install-recommends "$@" >/dev/null && return
        [ $attempt = 3 ] || sleep $((attempt * 5))
    done
    echo "apt-get could not install $*"
    return 1
}
