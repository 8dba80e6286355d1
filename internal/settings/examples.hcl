agent {
  id        = "web1"
  state_dir = "/var/lib/zkagent"
  splay     = "5s"
}

log { level = "debug" }

http { listen = "127.0.0.1:8558" }

dns {
  listen = "127.0.0.1:8600"
  domain = "zk.example.org."
}

admin { socket = "/run/zkagent/zkagent.sock" }

zookeeper {
  servers         = ["zk1:2281", "zk2:2281", "zk3:2281"]
  session_timeout = "30s"
  auth "digest" { credential = credential("zk-auth") }
  tls { ca_file = "/etc/zkagent/ca.pem" }
}

service "api" {
  group = "/services/api"
  port  = 8080
  drain = "10s"
  check "http" {
    url  = "http://127.0.0.1:8080/health"
    fall = 3
  }
}

config "web" { path = "/config/web" }

group "api" {
  path  = "/services/api"
  allow = ["10.0.0.0/8"]
  guard {
    max_loss = "30%"
    hold     = "10m"
  }
}

groups "apps" { path = "/services" }

format "solr" {
  address = "name"
  match   = "^(.+:[0-9]+)_"
}

election "nightly" { path = "/elections/nightly" }

template "upstreams" {
  source      = "upstreams.conf.tmpl"
  destination = "/etc/nginx/zkagent.d/upstreams.conf"
  check  { command = ["nginx", "-t"] }
  reload { command = ["systemctl", "reload", "nginx"] }
}

bundle "tls" {
  template "cert" {
    source      = "cert.tmpl"
    destination = "/etc/app/cert.pem"
  }
  template "key" {
    source      = "key.tmpl"
    destination = "/etc/app/key.pem"
    mode        = "0600"
  }
  reload { command = ["systemctl", "reload", "app"] }
}

hook "backup" {
  leader   = election.nightly
  schedule = "~ 3 * * *"
  command  = ["/usr/lib/app/backup"]
  timeout  = "30m"
}

exec "app" {
  command   = ["/usr/bin/app", "--config", "/etc/app/app.conf"]
  on_change = "signal"
}
