# Functions of the test of the unit: the container, ZooKeeper, waits, the logs
# of a failure. Sourced by scripts/systemd/run, which has set WORK and ROOT.
# shellcheck shell=bash
NSPAWN='' LEADER='' ZOO='' STEP=''
ZK=127.0.0.1:2181
PAGE=http://127.0.0.1:8080/

step() {
  STEP=$*
  printf '== %4d s  %s\n' "$SECONDS" "$*"
}

fail() {
  echo "FAIL: $STEP: $*" >&2
  exit 1
}

# ended STATUS: what is seen of a failure afterwards. All processes end with
# this one, all mounts with the last process.
ended() {
  trap - EXIT
  [ "$1" -ne 0 ] || exit 0
  set +e
  {
    echo "---- failed with status $1 in step: $STEP"
    if [ -n "$LEADER" ]; then
      echo "---- systemctl status"
      inside systemctl --no-pager --full --lines=0 status zkagent nginx zkagent-check@nginx
      inside systemctl --no-pager list-jobs
      inside systemctl --no-pager --failed
      echo "---- journal of the unit"
      inside journalctl --no-pager -o short-precise -n 200 -u zkagent
      echo "---- journal"
      inside journalctl --no-pager -o short-precise -n 120
    fi
    for f in "$WORK"/{dpkg,console,zoo}.log "$ROOT/var/log/nginx/error.log"; do
      echo "---- $f"
      tail -n 80 "$f"
    done
    echo "---- processes"
    ps -ef | tail -n 60
  } >&2
  exit "$1"
}

# inside CMD...: in the container, at most two minutes.
inside() {
  timeout --kill-after=5 120 nsenter -t "$LEADER" -m -u -i -p -- \
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 NO_COLOR=1 "$@"
}
as_agent() { inside runuser -u zkagent -- "$@"; }
show() { inside systemctl show zkagent -P "$1"; }

# eventually WHAT CMD...: until it succeeds; only its end is bounded.
eventually() {
  local what=$1 end=$((SECONDS + 120))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || fail "waited in vain for $what"
    sleep 0.1
  done
}

zoo_start() {
  java -Dzookeeper.admin.enableServer=false -Dzookeeper.4lw.commands.whitelist='*' -Xmx128m -XX:+UseSerialGC \
    -cp "/usr/share/java/*" org.apache.zookeeper.server.quorum.QuorumPeerMain "$WORK/zoo.cfg" >>"$WORK/zoo.log" 2>&1 &
  ZOO=$!
  eventually "ZooKeeper" zk zk ls /
}
zoo_stop() {
  kill -KILL "$ZOO"
  wait "$ZOO" 2>/dev/null || true
  ZOO=''
}
zk() { "$BIN" "$@" --zk "$ZK" --timeout 20s; }
member() { zk zk ls /services/web; }
created() { zk zk stat "/services/web/$(member)" | awk '/czxid/ {print $2}'; }
has_member() { [ -n "$(member)" ]; }
no_member() { [ -z "$(member)" ]; }

# boot starts the container and waits until systemd has started what it starts.
boot() {
  SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn -q -D "$ROOT" -M zkagent-test --register=no --keep-unit \
    --console=pipe -b </dev/null >>"$WORK/console.log" 2>&1 &
  NSPAWN=$!
  eventually "the first process of the container" find_leader
  eventually "the container to be up" running
}
find_leader() { LEADER=$(pgrep -P "$NSPAWN") && inside true; }
running() { inside systemctl is-system-running | grep -E 'running|degraded' >/dev/null; }
poweroff() {
  inside systemctl poweroff >/dev/null 2>&1 || true
  LEADER=''
  wait "$NSPAWN" || true
  NSPAWN=''
}

is_active() { [ "$(show ActiveState)" = active ]; }
# Nothing here reads by "grep -q": it ends early, and what writes into it would fail.
session_id() { inside zkagent status -o json | sed -n 's/.*"session_id": *"*\([0-9a-fx]*\).*/\1/p' | awk 'NR == 1'; }
status_has() { inside zkagent status -o json | grep -- "$1" >/dev/null; }
no_status_of() { ! status_has "$1"; }
# journal_has REGEXP MATCH...: whether a line of the journal, chosen by MATCH, has it.
journal_has() { inside journalctl --no-pager -q "${@:2}" | grep -E -- "$1" >/dev/null; }
serves() { [ "$(curl -fsS --max-time 20 "$PAGE")" = "$1" ]; }

# settings FILE makes it the settings of the agent, as the package has them.
# A running agent loads them by itself as soon as it notices.
settings() {
  cp "$1" "$ROOT/etc/zkagent/zkagent.hcl.new"
  inside chgrp zkagent /etc/zkagent/zkagent.hcl.new
  inside chmod 0640 /etc/zkagent/zkagent.hcl.new
  mv "$ROOT/etc/zkagent/zkagent.hcl.new" "$ROOT/etc/zkagent/zkagent.hcl"
}
publish() {
  echo "$1" >"$WORK/site/banner"
  zk config publish "$WORK/site" /config/site >/dev/null
}
status_line() { show StatusText | grep -iE -- "$1" >/dev/null; }
