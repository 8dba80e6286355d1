# What the reference block does not show.
agent {
  id        = "a1"
  state_dir = "/var/lib/zkagent"
}
http {
  listen       = "192.0.2.5:8558"
  hosts        = ["zkagent.example"]
  allow_remote = true
}
zookeeper { servers = ["zk1", "[::1]:2182"] }
config "web.v2" {
  path   = "/config/web2"
  layout = "plain"
}
config "baked" {
  path = "/config/baked"
  rollout {
    bake_check {
      command = ["/usr/lib/web/slo", "99.5"]
      timeout = "5s"
    }
  }
}
config "asked" {
  path = "/config/asked"
  rollout {
    bake_check { http = "http://127.0.0.1:8080/slo" }
  }
}
config "figures" {
  path = "/config/figures"
  rollout {
    bake_check {
      fall = 3
      prometheus {
        url   = "https://prometheus:9090"
        query = "sum(rate(http_errors_total[1m])) / sum(rate(http_requests_total[1m]))"
        max   = 0.01
        tls { ca_file = "/etc/ca.pem" }
      }
    }
  }
}
group "api" {
  path  = "/services/api"
  allow = ["10.0.0.7", "fd00::/8"]
  guard { enabled = false }
}
election "e" {
  path     = "/e"
  dialect  = "kazoo"
  join_delay = "24s"
}
service "ttl" {
  group    = ["/services/ttl", "/services/next"]
  port     = 1
  ports    = { admin = 2 }
  format   = "serverset"
  shard    = 4
  warm_up  = "30s"
  check "ttl" { ttl = "1m" }
  check "http" {
    url      = "https://127.0.0.1/health"
    interval = "500ms"
    status   = "200"
    tls { insecure = true }
  }
}
template "verify" {
  contents    = "{{ key \"web.v2/a\" }}"
  destination = "out/verify.conf"
  in_place    = true
  symlink     = "refuse"
  drift       = "report"
  max_size    = "1MiB"
  timeout     = "2s"
  syntax      = "hcl"
  wait { min = "100ms" }
  reload {
    command = ["nginx", "-s", "reload"]
    verify {
      pid_file = "/run/nginx.pid"
      timeout  = "5s"
    }
  }
}
template "each" {
  contents    = "{{ .Key }}"
  destination = "out/${each.key}.conf"
  for_each    = config["web.v2"]
  reload { command = ["echo", "--", each.key, each.value] }
}
service "spring" {
  group  = "/services/spring"
  port   = 8080
  format = "curator"
  labels = { zone = "a" }
  curator {
    preset     = "spring"
    payload_id = "application-1"
    uri_spec   = "https://{address}:{ssl-port}"
    ssl_port   = 8443
    no_port    = true
  }
}
format "names" {
  address = "name"
  match   = "^(?P<id>[a-z]+)@([^:]+):([0-9]+)$"
}
group "names" {
  path   = "/names"
  format = "names"
}
