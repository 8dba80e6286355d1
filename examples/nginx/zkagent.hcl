# nginx upstreams from a group and a config tree, unprivileged, on loopback.
#
#   ZK=127.0.0.1:2181 DIR=/tmp/zkagent-nginx zkagent run --config examples/nginx
#
# DIR holds nginx.conf (its include line names DIR/conf.d) and logs/; nginx is
# started by hand there: nginx -p DIR -e logs/error.log -c nginx.conf

agent {
  state_dir = "${env("DIR")}/state"
  on_stop   = "leave"
}

admin { socket = "${env("DIR")}/zkagent.sock" }

zookeeper {
  servers         = [env("ZK", "127.0.0.1:2181")]
  session_timeout = "6s"
}

config "shop" { path = "/config/shop" }

group "api" {
  path  = "/services/api"
  allow = ["127.0.0.0/8"]
}

template "upstreams" {
  source      = "upstreams.conf.tmpl"
  destination = "${env("DIR")}/conf.d/upstreams.conf"
  backup      = 1

  # The check runs before the new file is in place, and sees it in place: nginx reads its
  # whole configuration as it will be.
  check {
    command = ["nginx", "-p", env("DIR"), "-e", "logs/error.log", "-t", "-q", "-c", "nginx.conf"]
    timeout = "10s"
  }

  # `nginx -s reload` parses first and fails with a code; the new workers are
  # the proof that the configuration is in use.
  reload {
    command      = ["nginx", "-p", env("DIR"), "-e", "logs/error.log", "-s", "reload", "-c", "nginx.conf"]
    timeout      = "30s"
    min_interval = "1s"
    verify {
      pid_file = "${env("DIR")}/nginx.pid"
      log      = "${env("DIR")}/logs/error.log"
    }
  }
}
