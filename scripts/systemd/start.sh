# Start, READY, the unprivileged check and reload, the journal. Sourced by
# scripts/systemd/run.
# shellcheck shell=bash
# The credential comes from a file that root alone can read.
mkdir -p "$ROOT/etc/zkagent/secrets" "$ROOT/etc/systemd/system/zkagent.service.d"
echo 'agent:Pl4nted-secret' >"$ROOT/etc/zkagent/secrets/zk-auth"
chmod 0700 "$ROOT/etc/zkagent/secrets"
printf '[Service]\nLoadCredential=zk-auth:/etc/zkagent/secrets/zk-auth\n' >"$ROOT/etc/systemd/system/zkagent.service.d/auth.conf"
inside systemctl daemon-reload
cat >"$WORK/good.hcl" <<'HCL'
zookeeper {
  servers         = ["127.0.0.1:2181"]
  session_timeout = "40s"
  auth "digest" { credential = credential("zk-auth") }
}
service "web" {
  group   = "/services/web"
  address = "127.0.0.1"
  port    = 8080
}
config "site" { path = "/config/site" }
template "banner" {
  contents    = "map \"\" $banner { default \"{{ key \"site/banner\" | trimSpace }}\"; }\n"
  destination = "/etc/nginx/zkagent.d/banner.conf"
  check {
    command = ["zkagent-check", "nginx"]
    timeout = "60s"
  }
  reload {
    command = ["systemctl", "reload", "nginx.service"]
    timeout = "60s"
  }
}
HCL
publish first
settings "$WORK/good.hcl"

step "start: READY, rendered, checked and reloaded by an unprivileged user"
inside systemctl start nginx
inside systemctl start zkagent || fail "start"
[ "$(show ActiveState)/$(show SubState)/$(show Type)" = active/running/notify ] || fail "$(show ActiveState)/$(show SubState)/$(show Type) after the start"
eventually "the first page" serves first
eventually "a member" has_member
pid=$(show MainPID)
[ "$(inside stat -c %U "/proc/$pid")" = zkagent ] || fail "the agent does not run as its user"
eventually "the status line" status_line 'leader|ok|ZooKeeper|ZK'
echo "           status: $(show StatusText)"
as_agent systemctl --no-ask-password stop nginx 2>/dev/null && fail "the agent's user may stop nginx"
as_agent systemctl --no-ask-password reload zkagent 2>/dev/null && fail "the agent's user may reload other units"
eventually "the check to have run in its unit" journal_has 'Finished zkagent-check@nginx.service' -u zkagent-check@nginx.service
eventually "nginx to have been reloaded by systemd" journal_has 'Reloaded nginx.service' -u nginx.service

step "the credential: used, and not in the environment"
zk zk acl "/services/web/$(member)" | grep -F 'digest' >/dev/null || fail "the member's ACL is not that of the credential: $(zk zk acl "/services/web/$(member)")"
inside cat "/proc/$pid/environ" | grep -a Pl4nted >/dev/null && fail "the credential is in the environment"
inside journalctl --no-pager -q | grep Pl4nted >/dev/null && fail "the credential is in the journal"

step "the journal has the fields that are promised"
eventually "the end of the first reload" journal_has 'applied' -u zkagent ZKAGENT_TEMPLATE=banner
inside journalctl --no-pager -q -o json -u zkagent ZKAGENT_TEMPLATE=banner >"$WORK/entries.json"
for field in '"PRIORITY":"6"' '"SYSLOG_IDENTIFIER":"zkagent"' '"ZKAGENT_EVENT":"' '"MESSAGE":"' '"_SYSTEMD_UNIT":"zkagent.service"' '"_TRANSPORT":"journal"'; do
  grep -F -- "$field" "$WORK/entries.json" >/dev/null || fail "no entry has $field: $(tail -n 1 "$WORK/entries.json")"
done

step "a value that nginx refuses never comes into place"
status_has 'before the swap, in a preview by the unit zkagent-check@nginx.service' || fail "the check has no preview"
in_place() { inside stat -c '%i %Z' /etc/nginx/zkagent.d/banner.conf; }
before=$(in_place)
publish 'bad"; nonsense'
eventually "a failed template" status_has template-failed
serves first || fail "the refused value is served"
status_has 'emerg.*banner.conf:1' || fail "the status does not have the text of nginx"
[ "$(in_place)" = "$before" ] || fail "the refused file was in place: $(in_place), before $before"
inside test ! -e /run/zkagent/preview/nginx/etc || fail "what was laid for the check is left"
eventually "the status line to tell" status_line 'failed'
publish second
eventually "the corrected page" serves second
