# An upgrade of the package. Sourced by scripts/systemd/run.
# shellcheck shell=bash
step "an upgrade of the package: a newer version, the same session, settings kept"
dpkg-deb -R "$DEB" "$WORK/deb"
sed -i 's/^\(Version: .*\)/\1.next/' "$WORK/deb/DEBIAN/control"
dpkg-deb -Zgzip -z1 -b "$WORK/deb" "$ROOT/root/next.deb" >/dev/null
restarts=$(show MainPID)
dpkg_log -i /root/next.deb || fail "upgrade"
case $(inside dpkg-query -W -f '${Version} ${db:Status-Status}' zkagent) in *".next installed") ;; *) fail "the newer version is not installed" ;; esac
[ "$(show MainPID)" != "$restarts" ] || fail "the former program still runs"
same_session "an upgrade"
cmp -s "$WORK/good.hcl" "$ROOT/etc/zkagent/zkagent.hcl" || fail "an upgrade has replaced the settings"
