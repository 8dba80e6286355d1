zookeeper { servers = ["zk1"] }
zookeeper { servers = ["zk2"] }
config "a" { path = "/a" }
config "a" { path = "/b" }
template "t" {
  contents    = "x"
  destination = "/tmp/zkagent-test/t"
}
bundle "t" {
  template "one" {
    contents    = "x"
    destination = "/tmp/zkagent-test/t"
  }
  template "one" {
    contents    = "x"
    destination = "/tmp/zkagent-test/t2"
  }
}
election "e1" { path = "/e" }
election "e2" { path = "/e" }
service "s1" {
  group     = "/g"
  port      = 80
  member_id = "m"
}
service "s2" {
  group     = "/g"
  port      = 81
  member_id = "m"
}
