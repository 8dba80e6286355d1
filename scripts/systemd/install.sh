# Boot, ZooKeeper, the package. Sourced by scripts/systemd/run.
# shellcheck shell=bash
step "boot, ZooKeeper, nginx"
mkdir -p "$WORK/data" "$WORK/site" "$ROOT/etc/nginx/zkagent.d"
printf '%s\n' tickTime=500 "dataDir=$WORK/data" clientPort=2181 clientPortAddress=127.0.0.1 maxSessionTimeout=120000 >"$WORK/zoo.cfg"
rm -f "$ROOT/etc/nginx/sites-enabled/default"
cat >"$ROOT/etc/nginx/conf.d/test.conf" <<'NGINX'
include /etc/nginx/zkagent.d/*.conf;
server { listen 127.0.0.1:8080; location / { return 200 "$banner"; } }
NGINX
echo 'map "" $banner { default "none"; }' >"$ROOT/etc/nginx/zkagent.d/banner.conf"
cp "$DEB" "$ROOT/root/zkagent.deb"
boot
zoo_start

step "the package: a user, a unit, example settings, nothing started"
dpkg_log() { inside dpkg "$@" >>"$WORK/dpkg.log" 2>&1; }
dpkg_log -i /root/zkagent.deb || fail "dpkg -i"
inside getent passwd zkagent >/dev/null || fail "no user zkagent"
[ "$(show LoadState)" = loaded ] || fail "the unit is $(show LoadState)"
[ "$(show ActiveState)" = inactive ] || fail "the package has started the agent"
[ "$(inside stat -c '%a %U:%G' /etc/zkagent/zkagent.hcl)" = "640 root:zkagent" ] || fail "settings: $(inside stat -c '%a %U:%G' /etc/zkagent/zkagent.hcl)"
[ "$(inside stat -c %U /etc/nginx/zkagent.d)" = zkagent ] || inside chown -R zkagent /etc/nginx/zkagent.d
as_agent zkagent validate --quiet -c /etc/zkagent || fail "the example settings are not valid, or not readable by the user"
for f in /usr/share/man/man1/zkagent.1.gz /usr/share/man/man5/zkagent.hcl.5.gz /usr/share/bash-completion/completions/zkagent; do
  [ -s "$ROOT$f" ] || fail "$f is missing"
done

step "the sandboxes are rated"
# rated UNIT TENTHS: systemd finds an exposure of TENTHS at most.
rated() {
  local said
  inside systemd-analyze verify --man=no "$1" || fail "systemd-analyze verify $1"
  said=$(inside systemd-analyze security --offline=true --threshold="$2" --no-pager "$1") || fail "above $2 tenths: $said"
  echo "           $(tail -n 1 <<<"$said")"
}
rated zkagent.service 15
rated zkagent-check@nginx.service 16
