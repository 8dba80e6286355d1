# What the agent's user can do by a file that nginx includes, without and with
# the sandbox for nginx. Sourced by scripts/systemd/run.
# shellcheck shell=bash
include=/etc/nginx/zkagent.d/attack.conf
write_include() { as_agent sh -c 'printf "%s\n" "$1" >"$2"' sh "$1" "$include"; }
reload_nginx() { as_agent systemctl --no-ask-password reload nginx >>"$WORK/attack.log" 2>&1; }

step "the output of a check is for the agent's group alone"
out=/run/zkagent-check/nginx.out
[ "$(inside stat -c '%a %U:%G' "$out")" = "640 root:zkagent" ] || fail "the output of the check: $(inside stat -c '%a %U:%G' "$out")"
inside runuser -u nobody -- cat "$out" 2>/dev/null && fail "everybody may read the output of the check"
as_agent cat "$out" >/dev/null || fail "the agent may not read the output of the check"

step "the check as root makes nothing on the host"
# refused DIRECTIVE SAYS: the check, by the agent's user, refuses it in these words.
refused() {
  write_include "$1"
  as_agent zkagent-check nginx 2>"$WORK/check.txt" && fail "the check lets $1 through"
  grep -E -- "$2" "$WORK/check.txt" >/dev/null || fail "the check says of $1: $(cat "$WORK/check.txt")"
}
refused 'access_log /etc/zkagent-attack;' '/etc/zkagent-attack.*Read-only'
refused 'client_body_temp_path /var/lib/nginx/zkagent-attack;' '/var/lib/nginx/zkagent-attack.*Read-only'
echo 'Pl4nted;' >"$ROOT/root/secret"
refused 'include /root/secret;' '/root/secret.*No such file'
# What the sandbox hides is an empty file. nginx would name the word otherwise.
cp -p "$ROOT/etc/shadow" "$WORK/shadow"
echo 'Pl4nted;' >>"$ROOT/etc/shadow"
write_include 'include /etc/shadow;'
as_agent zkagent-check nginx 2>"$WORK/check.txt" || fail "the check reads /etc/shadow: $(cat "$WORK/check.txt")"
cp -p "$WORK/shadow" "$ROOT/etc/shadow"
write_include 'access_log /run/zkagent-attack; error_log /var/log/nginx/allowed.log;'
as_agent zkagent-check nginx || fail "the check refuses a log of nginx"
for f in /etc/zkagent-attack /run/zkagent-attack /var/lib/nginx/zkagent-attack; do
  inside test ! -e "$f" || fail "the check has made $f"
done
publish 'x"; } access_log /etc/zkagent-attack; map "" $other { default "y'
eventually "the attack by a key to be refused" status_has 'emerg.*zkagent-attack'
serves second || fail "what the check refused is served"
inside rm "$include"
publish second
eventually "the corrected key" no_status_of template-failed

step "nginx means root: without a sandbox the agent's user writes files as root"
write_include 'access_log /etc/zkagent-attack;'
reload_nginx
eventually "the file of the attack" inside test -e /etc/zkagent-attack
[ "$(inside stat -c %u /etc/zkagent-attack)" = 0 ] || fail "the file is not of root: this test shows nothing"
inside rm "$include" /etc/zkagent-attack

step "the sandbox for nginx: the same attacks write nothing, and the agent works"
mkdir -p "$ROOT/etc/systemd/system/nginx.service.d"
inside cp /usr/share/zkagent/nginx-sandbox.conf /etc/systemd/system/nginx.service.d/
inside systemctl daemon-reload
rated nginx.service 45
inside systemctl restart nginx || fail "nginx does not start in its sandbox"
serves second || fail "nginx does not serve in its sandbox"
nginx_said() { grep -F -- "$1" "$ROOT/var/log/nginx/error.log" >/dev/null; }
for directive in access_log client_body_temp_path; do
  for dir in /etc /etc/nginx /run /run/systemd/system /usr/bin /root; do
    target=$dir/zkagent-attack-$directive
    write_include "$directive $target;"
    # nginx takes the signal, reads the file, and keeps what it has.
    reload_nginx
    eventually "nginx to refuse $directive $target" nginx_said "\"$target\" failed"
    inside test ! -e "$target" || fail "nginx has made $target"
  done
done
inside rm "$include"
serves second || fail "nginx does not serve after the attacks"
publish sandboxed
eventually "a change in the sandbox" serves sandboxed
publish second
eventually "the change back" serves second
inside systemctl restart nginx || fail "a second start of nginx in its sandbox"
serves second || fail "nginx does not serve after a restart"
