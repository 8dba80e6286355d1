# HAProxy servers from a group, by the runtime API: HAProxy is never reloaded,
# so no connection is ever cut and no health check begins again.
#
#   DIR=/run/web-lb PORT=8080 haproxy -f examples/haproxy/haproxy.cfg
#   DIR=/run/web-lb ZK=zk1:2181 zkagent run --config examples/haproxy
#
# haproxy.cfg keeps empty slots (server-template). The agent supervises
# "zkagent haproxy", which puts the members of the group into the slots, and
# again after a restart of HAProxy.

agent {
  state_dir = "${env("DIR")}/state"
}

admin { socket = "${env("DIR")}/zkagent.sock" }

zookeeper {
  servers         = [env("ZK", "127.0.0.1:2181")]
  session_timeout = "6s"
}

exec "slots" {
  command = [
    env("ZKAGENT", "/usr/bin/zkagent"), "haproxy", "--zk", env("ZK", "127.0.0.1:2181"),
    "--socket", "${env("DIR")}/haproxy.sock", "--backend", "web", "/services/web",
  ]
}
