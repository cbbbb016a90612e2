#!/usr/bin/env bash
# keyferry in two minutes: moves databases 2 and 5 of a server that is being written to, and proves that both sides are equal.
#
# usage: examples/quickstart.sh       on Debian with cargo; installs redis-server where no server is found
# Everything runs on 127.0.0.1 and in a temporary folder, and is gone at the end.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
pids=()

cleanup() {
  local code=$?
  trap - EXIT INT TERM
  [ -z "${load:-}" ] || { kill "$load" 2>/dev/null || true; wait "$load" 2>/dev/null || true; }
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$work"
  exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] && [ -z "${NO_COLOR:-}" ] || say() { printf '\n%s\n' "$*"; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# ---- what is needed: a C linker for cargo, a server, its command line

find_server() {
  local name
  for name in redis valkey; do
    if command -v "$name-server" >/dev/null && command -v "$name-cli" >/dev/null; then
      server=$(command -v "$name-server") cli=$(command -v "$name-cli")
      return 0
    fi
  done
  # Those that tests/servers.sh brought do as well.
  local dir=${KEYFERRY_SERVERS:-$HOME/.cache/keyferry/servers}/redis-7.0/bin
  if [ -x "$dir/redis-server" ] && [ -x "$dir/redis-cli" ]; then
    server=$dir/redis-server cli=$dir/redis-cli
    return 0
  fi
  return 1
}

install() {
  local policy=/usr/sbin/policy-rc.d made=
  say "Installing $*"
  # With this file Debian's packages don't start their services.
  if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null
    as_root chmod +x $policy
    made=yes
  fi
  local code=0
  { as_root apt-get -qq update &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends "$@" >/dev/null; } || code=$?
  [ -z "$made" ] || as_root rm -f $policy
  return $code
}

disable_service() {
  # Nor shall it start with the machine.
  if command -v systemctl >/dev/null; then as_root systemctl disable redis-server >/dev/null 2>&1 || true; fi
}

needed=()
command -v cc >/dev/null || needed+=(gcc libc6-dev)
find_server || needed+=(redis-server redis-tools)
if [ ${#needed[@]} -gt 0 ]; then
  install "${needed[@]}"
  case " ${needed[*]} " in *" redis-server "*) disable_service ;; esac
  find_server || { echo 'no redis-server was found after installing it' >&2; exit 1; }
fi
keyferry=${KEYFERRY:-} # a built program, if that is there already
if [ -z "$keyferry" ]; then
  command -v cargo >/dev/null || { echo 'cargo is missing: install Rust (rustup) first' >&2; exit 2; }
  say "Building keyferry"
  (cd "$here" && cargo build --release --locked)
  keyferry=${CARGO_TARGET_DIR:-$here/target}/release/keyferry
fi

# ---- two servers

start_server() { # NAME: sets port
  local try
  for try in $(seq 20); do
    port=$((RANDOM % 15000 + 12000))
    mkdir -p "$work/$1"
    "$server" --port "$port" --bind 127.0.0.1 --dir "$work/$1" --save "" --repl-diskless-sync-delay 0 >"$work/$1/log" 2>&1 &
    local pid=$!
    for _ in $(seq 100); do
      kill -0 "$pid" 2>/dev/null || break
      if [ "$("$cli" -p "$port" INFO server 2>/dev/null | tr -d '\r' | sed -n 's/^process_id://p')" = "$pid" ]; then
        pids+=("$pid")
        return 0
      fi
      sleep 0.05
    done
    kill "$pid" 2>/dev/null || true
  done
  cat "$work/$1/log" >&2
  return 1
}

start_server source
source_port=$port
start_server target
target_port=$port
say "Two servers: $("$server" --version | grep -oE 'v=[0-9.]+'), source on $source_port, target on $target_port"

src() { "$cli" -p "$source_port" "$@"; }
dst() { "$cli" -p "$target_port" "$@"; }

fill='
for i = 1, tonumber(ARGV[1]) do
  redis.call("SET", "user:" .. i, string.rep("x", 100))
  if i % 5 == 0 then redis.call("HSET", "cart:" .. i, "apples", i, "pears", i * 2) end
  if i % 10 == 0 then redis.call("ZADD", "board", i, "player:" .. i); redis.call("RPUSH", "queue", "job:" .. i) end
  if i % 20 == 0 then redis.call("SET", "session:" .. i, i, "EX", 86400 + i) end
end
redis.call("XADD", "events", "*", "what", "filled")'
for db in 0 2 5; do src -n $db EVAL "$fill" 0 40000 >/dev/null; done

# ---- live writes, in databases 0, 2 and 5, until told to stop

write_on() {
  local i=0 db
  while [ ! -e "$work/stop" ]; do
    for db in 0 2 5; do
      printf 'SELECT %s\n' $db
      for _ in 1 2 3 4 5 6 7 8 9 10; do
        i=$((i + 1))
        printf 'INCR visits\nSET user:%s live-%s\nHINCRBY cart:%s apples 1\nLPUSH queue live:%s\nRPOP queue\nDEL user:%s\n' \
          $((i % 40000)) $i $((i % 2000 * 5)) $i $((i * 7 % 40000))
        printf 'MULTI\nINCR a\nINCR b\nEXEC\nEXPIRE cart:%s 90000\n' $((i % 2000))
      done
    done
    sleep 0.01
  done
}
write_on | src >/dev/null &
load=$!
say "Something writes to databases 0, 2 and 5 all the time; 0 stays where it is"

# ---- the move

say "keyferry sync --source redis://127.0.0.1:$source_port --target redis://127.0.0.1:$target_port --db 2,5"
export XDG_STATE_HOME=$work/state
"$keyferry" sync --source "redis://127.0.0.1:$source_port" --target "redis://127.0.0.1:$target_port" --db 2,5 &
ferry=$!
pids+=("$ferry")

visits() { "$1" -n 5 GET visits; }
for _ in $(seq 600); do
  kill -0 "$ferry" 2>/dev/null || { echo 'keyferry ended early' >&2; exit 1; }
  [ -n "$(visits dst)" ] && [ "$(dst -n 2 EXISTS a b)" = 2 ] && break
  sleep 0.1
done
sleep 5 # to watch it follow
say "It follows: $(visits src) visits on the source, $(visits dst) on the target a moment later"

# ---- stop the writes, stop following, end the job

touch "$work/stop"
wait "$load" || true # until the last of them is on the source
load=

say "The writes have ended; keyferry is asked to stop"
kill -TERM "$ferry"
code=0
wait "$ferry" || code=$?
[ "$code" = 0 ] || { echo "keyferry ended with $code" >&2; exit 1; }

say "keyferry finish, with the same options: catches up with the source, gives each key its true expiry, leaves nothing of its own"
"$keyferry" finish --source "redis://127.0.0.1:$source_port" --target "redis://127.0.0.1:$target_port" --db 2,5

# ---- read both back

# read_back PORT DB: every key with its type, value and, where the server can tell, its time of expiry, in order
read_back() {
  local port=$1 db=$2
  "$cli" -p "$port" -n "$db" --scan | LC_ALL=C sort -u >"$work/keys"
  # One pass for the types, one for the values, each over one connection.
  sed 's/^/TYPE /' "$work/keys" | "$cli" -p "$port" -n "$db" >"$work/types"
  paste -d' ' "$work/types" "$work/keys" | while read -r type key; do
    case $type in
      string) echo "GET $key" ;;
      hash) echo "HGETALL $key" ;;
      list) echo "LRANGE $key 0 -1" ;;
      zset) echo "ZRANGE $key 0 -1 WITHSCORES" ;;
      stream) echo "XRANGE $key - +" ;;
    esac
    echo "PEXPIRETIME $key" # an error, the same on both sides, before 7.0
  done >"$work/reads"
  paste -d' ' "$work/types" "$work/keys"
  "$cli" -p "$port" -n "$db" <"$work/reads"
}

for db in 2 5; do
  read_back "$source_port" $db >"$work/source.$db"
  read_back "$target_port" $db >"$work/target.$db"
  if ! cmp -s "$work/source.$db" "$work/target.$db"; then
    echo "database $db differs:" >&2
    diff "$work/source.$db" "$work/target.$db" | head -20 >&2 || true
    exit 1
  fi
done
say "Equal: database 2 with $(src -n 2 DBSIZE) keys and 5 with $(src -n 5 DBSIZE), each key's type, value and expiry read back from both sides."
strays=$(dst -n 0 DBSIZE)
[ "$strays" = 0 ] || { echo "database 0 was not asked for, but the target has $strays of its keys" >&2; exit 1; }
say "Database 0 was not asked for: none of its keys is on the target."
