#!/bin/bash
# An MPI job over several pretended hosts on one machine, as a test of runs over a network:
#   scripts/mpi_hosts.sh 2 jaxrl-hpc train workflows/cartpole_ppo_sharded        (as root)
# Each host is a network namespace with an address of its own; a bridge joins them. MPICH's mpiexec starts one rank
# in each (RANKS_PER_HOST=2: two), and they can reach each other by TCP only. Everything is removed at the end.
# LAUNCHER=hand: without MPI, one process in each, which get --coordinator, --processes and --process.
set -eu
hosts=$1
shift
net=10.77.0
bridge=jrl0
mpiexec=${MPIEXEC:-$(command -v mpiexec || true)}
if [ -z "$mpiexec" ] && [ "${LAUNCHER:-mpi}" = mpi ]; then
  echo "no mpiexec on the PATH: set MPIEXEC, or LAUNCHER=hand" >&2
  exit 2
fi
login=$(mktemp)
exec 7>/tmp/jrl-hosts.lock
flock 7 # one such job at a time: the next one waits

clean() {
  for ((i = 1; i <= hosts; i++)); do
    ip netns del "jrl-$i" 2>/dev/null || true
    ip link del "jrl-v$i" 2>/dev/null || true
  done
  ip link del "$bridge" 2>/dev/null || true
}
trap 'clean; rm -f "$login"' EXIT
clean

ip link add "$bridge" type bridge
ip addr add "$net.254/24" dev "$bridge"
ip link set "$bridge" up
names=
for ((i = 1; i <= hosts; i++)); do
  ip netns add "jrl-$i"
  ip link add "jrl-v$i" type veth peer name eth0 netns "jrl-$i"
  ip link set "jrl-v$i" master "$bridge" up
  ip -n "jrl-$i" addr add "$net.$i/24" dev eth0
  ip -n "jrl-$i" link set eth0 up
  ip -n "jrl-$i" link set lo up
  names+=${names:+,}$net.$i
done

# what mpiexec calls instead of ssh: OPTIONS HOST COMMAND…
cat >"$login" <<'LOGIN'
#!/bin/bash
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "jrl-${host##*.}" bash -c "$*"
LOGIN
chmod +x "$login"

if [ "${LAUNCHER:-mpi}" = hand ]; then
  pids=()
  for ((i = 1; i <= hosts; i++)); do
    7>&- ip netns exec "jrl-$i" "$@" --coordinator "$net.1:29400" --processes "$hosts" --process $((i - 1)) &
    pids+=($!)
  done
  worst=0
  for pid in "${pids[@]}"; do wait "$pid" || worst=$?; done
  exit "$worst"
fi

export FI_PROVIDER=tcp
# its children must not keep the lock
7>&- "$mpiexec" -launcher ssh -launcher-exec "$login" -localhost "$net.254" -hosts "$names" \
  -ppn "${RANKS_PER_HOST:-1}" -n $((hosts * ${RANKS_PER_HOST:-1})) "$@"
