# Outages of ZooKeeper, also over a boot. Sourced by scripts/systemd/run.
# shellcheck shell=bash
step "an outage: active, says so, and keeps the watchdog fed"
zoo_stop
eventually "the status line to tell of the outage" status_line 'suspended|connecting|unreachable'
echo "           status: $(show StatusText)"
restarts=$(show NRestarts) fed=$(show WatchdogTimestampMonotonic)
fed_again() { [ "$(show WatchdogTimestampMonotonic)" -gt "$fed" ]; }
eventually "a sign of life to the watchdog" fed_again
serves second || fail "the page is gone"
[ "$(show ActiveState)/$(show NRestarts)" = "active/$restarts" ] || fail "an outage has stopped the agent"

step "boot without ZooKeeper"
inside systemctl enable nginx zkagent 2>/dev/null
poweroff
boot
eventually "READY without ZooKeeper" is_active
eventually "the page after a boot" serves second
eventually "the condition" status_has last-known-good
zoo_start
eventually "a member after the outage" has_member
publish third
eventually "the page after the outage" serves third
