# Restarts of all kinds keep session and member. Sourced by scripts/systemd/run.
# shellcheck shell=bash
before=$(created) session=$(session_id)
[ -n "$before" ] && [ -n "$session" ] || fail "no member or session"
same_session() {
  eventually "the agent's answer" inside zkagent status
  [ "$(session_id)" = "$session" ] || fail "$1 has made another session: $session, then $(session_id)"
  [ "$(created)" = "$before" ] || fail "$1 has registered the member anew: czxid $before, then $(created)"
}

step "restart hands the session over"
for _ in 1 2 3; do
  inside systemctl restart zkagent || fail "restart"
  same_session "a restart"
done

step "kill -9: restarted, the member stays"
restarts=$(show NRestarts)
restarted() { [ "$(show NRestarts)" -gt "$restarts" ] && is_active; }
inside systemctl kill -s KILL --kill-who=main zkagent
eventually "a restart after a kill" restarted
same_session "a kill"

step "the watchdog ends an agent that stands still; the member stays"
printf '[Service]\nWatchdogSec=10s\n' >"$ROOT/etc/systemd/system/zkagent.service.d/watchdog.conf"
inside systemctl daemon-reload
inside systemctl restart zkagent
restarts=$(show NRestarts)
inside kill -STOP "$(show MainPID)"
eventually "the watchdog" restarted
eventually "the journal to name the watchdog" journal_has 'Watchdog timeout' -u zkagent
same_session "the watchdog"
rm "$ROOT/etc/systemd/system/zkagent.service.d/watchdog.conf"
inside systemctl daemon-reload
