# What "zkagent doctor" and "zkagent debug" find beside the real unit. Sourced
# by scripts/systemd/run.
# shellcheck shell=bash
doctor() { as_agent zkagent doctor -o json >"$WORK/doctor.json" 2>"$WORK/doctor.txt"; }
# finds LEVEL CHECK ABOUT: whether the last doctor found that.
finds() {
  python3 - "$WORK/doctor.json" "$@" <<'PY'
import json, sys
file, level, check, about = sys.argv[1:]
found = [f for f in json.load(open(file))["findings"] if f["check"] == check and about in f.get("about", "")]
sys.exit(0 if any(f["level"] == level for f in found) else 1)
PY
}
found() { finds "$@" || fail "the doctor does not say $*: $(cat "$WORK/doctor.json" "$WORK/doctor.txt")"; }
step "doctor: all is well"
eventually "the doctor to find nothing that fails" doctor
found ok settings /etc/zkagent
found ok agent /run/zkagent
found ok server 127.0.0.1:2181
found ok acl "service web"
found ok state /var/lib/zkagent
found ok file banner.conf
found ok sandbox /etc/nginx/zkagent.d/banner.conf
found ok check "template banner"
found ok reload "template banner"
found ok unit nginx.service
found ok polkit "start zkagent-check@nginx.service"
found ok polkit "reload nginx.service"
found ok write /zkagent
started=$(inside systemctl show nginx -P StateChangeTimestampMonotonic)
doctor_of_root() { inside zkagent doctor -o json >"$WORK/doctor.json" 2>"$WORK/doctor.txt"; }
eventually "the doctor to find nothing that fails, as root" doctor_of_root
found warn systemd zkagent.service
found ok polkit "reload nginx.service"
[ "$(inside systemctl show nginx -P StateChangeTimestampMonotonic)" = "$started" ] || fail "the doctor has reloaded nginx"

step "doctor: a job that polkit forbids, a directory that is not ours, one outside of the sandbox"
mkdir "$WORK/rules"
mv "$ROOT/usr/share/polkit-1/rules.d/50-zkagent.rules" "$WORK/rules/"
forbidden() { ! doctor && finds fail polkit "reload nginx.service" && finds fail polkit "start zkagent-check@nginx.service"; }
eventually "the doctor to find what polkit forbids" forbidden
mv "$WORK/rules/50-zkagent.rules" "$ROOT/usr/share/polkit-1/rules.d/"
eventually "polkit to allow it again" doctor
inside chown root /etc/nginx/zkagent.d
doctor && fail "a directory of somebody else is fine for it"
found fail file banner.conf
inside chown zkagent /etc/nginx/zkagent.d
mkdir -p "$ROOT/etc/nginx/elsewhere"
inside chown zkagent /etc/nginx/elsewhere
sed 's,/etc/nginx/zkagent.d/,/etc/nginx/elsewhere/,' "$WORK/good.hcl" >"$WORK/elsewhere.hcl"
cp "$WORK/elsewhere.hcl" "$ROOT/root/elsewhere.hcl"
inside install -o zkagent /root/elsewhere.hcl /tmp/elsewhere.hcl
as_agent zkagent doctor -c /tmp/elsewhere.hcl -o json >"$WORK/doctor.json" 2>"$WORK/doctor.txt" && fail "a destination outside of the sandbox is fine for it"
found fail sandbox /etc/nginx/elsewhere/banner.conf
found ok file /etc/nginx/elsewhere/banner.conf

step "debug: the archive has the findings, and not the credential"
as_agent zkagent debug --file - 2>/dev/null >"$WORK/debug.tar.gz" || fail "debug"
mkdir "$WORK/debug"
tar -xzf "$WORK/debug.tar.gz" --strip-components=1 -C "$WORK/debug"
grep '"polkit"' "$WORK/debug/doctor.json" >/dev/null || fail "no findings in the archive"
[ -s "$WORK/debug/status.json" ] || fail "no status in the archive"
if grep -r Pl4nted "$WORK/debug"; then fail "the credential is in the archive"; fi
