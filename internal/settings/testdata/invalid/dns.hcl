dns {
  listen    = "192.0.2.5:53"
  domain    = "not a domain."
  recursors = ["10.0.0.2", "[fd00::1]:5353", "resolver.example.com:53", "10.0.0.3:0"]
}
zookeeper { servers = ["zk1"] }
group "web.v2" { path = "/services/web" }
