# The end of the package. Sourced by scripts/systemd/run.
# shellcheck shell=bash
step "remove: stopped, left, the settings kept"
dpkg_log -r zkagent || fail "remove"
is_active && fail "it runs after a removal"
eventually "the members of former sessions to end" no_member
[ -e "$ROOT/etc/zkagent/zkagent.hcl" ] || fail "a removal has taken the settings"
[ ! -e "$ROOT/usr/bin/zkagent" ] || fail "the program is left after a removal"

step "purge: nothing is left but what was rendered"
dpkg_log -P zkagent || fail "purge"
for f in /etc/zkagent/zkagent.hcl /var/lib/zkagent /run/zkagent-check /lib/systemd/system/zkagent.service \
  /lib/systemd/system/zkagent-check@.service /usr/share/polkit-1/rules.d/50-zkagent.rules /usr/lib/sysusers.d/zkagent.conf /usr/share/zkagent; do
  [ ! -e "$ROOT$f" ] || fail "$f is left after a purge"
done
inside test ! -e /run/zkagent || fail "/run/zkagent is left after a purge"
serves third || fail "the rendered file is gone after a purge"
