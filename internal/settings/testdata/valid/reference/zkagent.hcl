agent {
  id        = hostname()
  state_dir = "/var/lib/zkagent"        # default: $STATE_DIRECTORY, else off (no handoff, no cache)
  on_stop   = "auto"                    # auto (systemd restart hands over, stop leaves) | leave | hand_over
  splay     = "0s"
}

log {
  level  = "info"
  format = "auto"                       # auto | text | json ; auto knows a terminal and the journal
}
http  { listen = "127.0.0.1:8558" }     # page, /metrics, /healthz, /readyz; off when absent
dns {
  listen       = "127.0.0.1:8600"
  domain       = "zkagent."
  ttl          = "0s"
  recursors    = []
  allow_remote = false
}
admin { socket = "/run/zkagent/zkagent.sock" }          # default: $RUNTIME_DIRECTORY, else /run/zkagent, else below state_dir

zookeeper {
  servers         = ["zk1:2181", "zk2:2181", "zk3:2181"]
  chroot          = "/prod"
  session_timeout = "10s"
  acl             = ["world:anyone:r", "auth::cdrwa"]    # for what the agent creates; default: open without auth, this with it
  auth "digest" {
    credential = credential("zk-auth")                   # user:password
  }
  tls {
    ca_file     = "..."
    cert_file   = "..."
    key_file    = "..."
    server_name = "..."
  }
}

service "web" {                                   # registers a member
  group       = "/services/web"
  address     = "10.0.0.5"                        # default: the local address that reaches ZooKeeper
  port        = 8080
  format      = "nerve"                           # nerve (default) | serverset | curator | template
  weight      = 10
  labels      = { zone = env("ZONE") }
  on_critical = "remove"                          # remove | status
  drain       = "5s"
  check "http" {
    url      = "http://127.0.0.1:8080/health"
    interval = "2s"
    timeout  = "1s"
    rise     = 2
    fall     = 3
  }
  check "tcp"  { address = "127.0.0.1:8080" }
  check "grpc" { address = "127.0.0.1:9090" }
  check "exec" { command = ["/usr/lib/web/check"] }
}

config "web" {
  path   = "/config/web"
  layout = "auto"                                 # auto (flat or versioned; waits for ready and says so) | flat | versioned | plain (no ready rule)
}

group "api" {
  path     = "/services/api"
  format   = "auto"                               # auto | nerve | serverset | curator | kafka-broker | patroni | dubbo-url | host-port-name | json | text
  on_empty = "keep"                               # keep | render | fail
  allow    = ["10.0.0.0/8"]
  guard {
    max_loss    = "30%"
    min_members = 3
    window      = "30s"
    hold        = "10m"                           # then believed; "0s" = until `zkagent members accept`
  }
}
groups "all" { path = "/services" }               # every child is a group

election "nightly" {
  path    = "/elections/nightly"
  dialect = "curator"
}

template "upstreams" {                            # a bundle of one
  source      = "upstreams.conf.tmpl"             # or contents = <<-EOT ; relative to this file; watched for changes (fsnotify)
  destination = "/etc/nginx/conf.d/upstreams.conf"
  mode        = "0644"
  owner       = "root"
  group       = "root"
  backup      = 1
  for_each    = groups.all                        # optional: one file per element; destination = "/etc/nginx/conf.d/${each.key}.conf"
  allow       = []                                # "env", "file"
  syntax      = "none"                            # json | yaml | toml | xml | hcl | ini: the rendered bytes must parse
  wait {
    min = "200ms"
    max = "2s"
  }
  error_on_missing_key = true
  check {
    command = ["nginx", "-t"]
                                                  # at = "preview" by default: it sees the new files in place
    timeout = "10s"
  }
  reload {
    command      = ["systemctl", "reload", "nginx"]
    timeout      = "30s"
    min_interval = "1s"                           # default; the first reload is at once
    retry        = 3
    on_failure   = "restore"                      # restore | keep
    leader       = election.nightly               # only where needed: only the elected leader runs it
    rolling {
      permits    = "10%"
      pause      = "5s"
      post_check = ["curl", "-fsS", "http://127.0.0.1/"]
    }
  }
}

bundle "site" {                                   # files that change together or not at all
  template "main" {
    source      = "site.conf.tmpl"
    destination = "/etc/site/site.conf"
  }
  template "map" {
    source      = "map.conf.tmpl"
    destination = "/etc/site/map.conf"
  }
  check  { command = ["/usr/sbin/sited", "-t", "-c", "${staged_dir}/etc/site/site.conf"] }   # at = "staged" by default
  reload { command = ["systemctl", "reload", "sited"] }
}

hook "compact" {
  leader     = election.nightly                   # absent: on every host
  on_change  = [config.web, group.api]            # any of on_change, schedule, on_elected, on_deposed
  schedule   = "0 3 * * *"                        # with `~`, @daily, CRON_TZ
  on_elected = true
  on_deposed = true
  command    = ["/usr/lib/maint/compact"]
  timeout    = "30m"
  overlap    = "forbid"
  catch_up   = "latest"
  idempotent = false
}
