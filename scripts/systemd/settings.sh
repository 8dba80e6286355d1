# Reload and refused settings. Sourced by scripts/systemd/run.
# shellcheck shell=bash
sed 's/^config /confgi /' "$WORK/good.hcl" >"$WORK/bad.hcl"
sed 's/^service "web"/service "second"/; s,/services/web,/services/second,' "$WORK/good.hcl" | sed -n '/^service/,/^}/p' | cat "$WORK/good.hcl" - >"$WORK/more.hcl"

step "reload blocks until the settings are in use"
settings "$WORK/more.hcl"
inside systemctl reload zkagent || fail "reload"
status_has '"second"' || fail "the reload has ended, and the new service is not there"
settings "$WORK/good.hcl"
inside systemctl reload zkagent || fail "reload"
status_has '"second"' && fail "the reload has ended, and the old service is still there"

step "reload reports what is refused"
settings "$WORK/bad.hcl"
inside systemctl reload zkagent 2>/dev/null && fail "a reload of bad settings has succeeded"
[ "$(show ActiveState)" = active ] || fail "a refused reload has stopped the agent"
eventually "the journal to say what is refused" journal_has 'confgi' -u zkagent
as_agent zkagent reload 2>"$WORK/reload.txt" && fail "a reload of bad settings has succeeded"
grep confgi "$WORK/reload.txt" >/dev/null || fail "the command does not say what is refused: $(cat "$WORK/reload.txt")"
eventually "the condition of the settings" status_has settings-
serves second || fail "the page is gone"
settings "$WORK/good.hcl"
inside systemctl reload zkagent || fail "reload"

step "stop leaves; bad settings exit 78, once"
inside systemctl stop zkagent
no_member || fail "a member after a stop"
settings "$WORK/bad.hcl"
inside systemctl start zkagent 2>/dev/null && fail "started with bad settings"
[ "$(show ExecMainStatus)" = 78 ] || fail "exit status $(show ExecMainStatus), want 78"
# A unit that systemd would start again is "activating (auto-restart)" from the
# moment its process has ended; one that it gives up is "failed".
[ "$(show ActiveState)/$(show SubState)/$(show NRestarts)" = failed/failed/0 ] ||
  fail "$(show ActiveState)/$(show SubState) after $(show NRestarts) restarts, want failed/failed after 0"
settings "$WORK/good.hcl"
inside systemctl reset-failed zkagent
inside systemctl start zkagent || fail "start after a correction"
eventually "a member" has_member
