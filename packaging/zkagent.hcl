# zkagent: see zkagent.hcl(5) and /usr/share/doc/zkagent/examples.
# `zkagent validate` finds every mistake at once.

zookeeper {
  servers         = ["127.0.0.1:2181"]
  session_timeout = "10s"
  # auth "digest" { credential = credential("zk-auth") }
}

http { listen = "127.0.0.1:8558" }

# service "web" {
#   group = "/services/web"
#   port  = 8080
#   check "http" { url = "http://127.0.0.1:8080/health" }
# }

# group "api" { path = "/services/api" }

# template "upstreams" {
#   source      = "upstreams.conf.tmpl"
#   destination = "/etc/nginx/zkagent.d/upstreams.conf"
#   check { command = ["zkagent-check", "nginx"] }
#   reload { command = ["systemctl", "reload", "nginx"] }
# }
