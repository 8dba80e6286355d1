# A service, a group, a config tree, a template and a leader-only hook: all that
# zkagent does, in one file. It needs nothing but the program:
#
#   zkagent dev examples/quickstart
#
# starts a ZooKeeper in memory, fills it from seed/, and runs the agent on this
# file. To run it against a ZooKeeper of your own, name that below, publish
# seed/config/shop to /config/shop, and use "zkagent run".

zookeeper {
  servers = ["127.0.0.1:2181"] # dev puts its own server here
}

# This host's instance: a member of the group while its check passes.
service "web" {
  group     = "/services/web"
  address   = "127.0.0.1"
  port      = 8080
  member_id = "web-here"
  check "tcp" {
    address  = "127.0.0.1:8080"
    interval = "500ms"
    rise     = 1
    fall     = 2
  }
}

group "web" { path = "/services/web" }

config "shop" { path = "/config/shop" }

# Edit upstreams.conf.tmpl while it runs: the file is rendered again at once.
template "upstreams" {
  source      = "upstreams.conf.tmpl"
  destination = "${env("ZKAGENT_DEV_DIR", "/tmp/zkagent-quickstart")}/upstreams.conf"
}

# Of all hosts with this file one is elected, and runs the hook.
election "caches" { path = "/elections/caches" }

hook "purge" {
  leader     = election.caches
  on_elected = true
  on_change  = [config.shop]
  command    = ["sh", "-c", "echo \"purging the caches because of: $ZKAGENT_EVENT\"; echo \"fencing token: $ZKAGENT_FENCE\""]
  timeout    = "10s"
}
