# HAProxy servers from a group, by the runtime API: HAProxy is never reloaded,
# so no connection is ever cut and no health check begins again.
#
#   DIR=/run/web-lb ZK=zk1:2181 zkagent run --config examples/haproxy
#
# haproxy.cfg keeps empty slots (server-template); the agent renders which
# member stands in which slot, and apply.py tells HAProxy through its socket.
# After a restart of HAProxy itself its slots are empty: its unit should run
# apply.py too (ExecStartPost=).

agent {
  state_dir = "${env("DIR")}/state"
}

admin { socket = "${env("DIR")}/zkagent.sock" }

zookeeper {
  servers         = [env("ZK", "127.0.0.1:2181")]
  session_timeout = "6s"
}

group "web" {
  path  = "/services/web"
  allow = ["127.0.0.0/8", "10.0.0.0/8"]
}

template "servers" {
  source      = "servers.tmpl"
  destination = "${env("DIR")}/servers"

  # The "reload" is the runtime API. When HAProxy refuses a command, the old
  # list is put back and applied again.
  reload {
    command = [
      env("PYTHON", "/usr/bin/python3"), env("APPLY", "/usr/share/zkagent/examples/haproxy/apply.py"),
      "${env("DIR")}/haproxy.sock", "web", "${env("DIR")}/servers",
    ]
    timeout      = "10s"
    min_interval = "0s"
  }
}
