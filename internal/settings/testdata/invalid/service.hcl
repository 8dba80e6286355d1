zookeeper { servers = ["zk1"] }
service "noport" { group = "/g" }
service "bad" {
  group       = "/g"
  address     = "10.0.0.1; } server {"
  port        = 70000
  format      = "template"
  shard       = 3
  weight      = -1
  ports       = { admin = 0, ok = 9000 }
  on_critical = "delete"
  drain       = "2h"
  check "http" {
    url      = "ftp://x"
    interval = "1s"
    timeout  = "5s"
    rise     = 0
  }
  check "htpp" { url = "http://x/" }
  check "tcp" { url = "http://x/" }
  check "exec" { command = "/bin/true" }
  check "exec" { command = [] }
  check "ttl" { ttl = "1ms" }
}
service "twice" {
  group = "/g"
  port  = 80
  check "tcp" { address = "127.0.0.1:80" }
  check "tcp" { address = "127.0.0.1:81" }
}
service "nowhere" {
  group = []
  port  = 80
}
service "everywhere" {
  group = ["/g", "services", "/g"]
  port  = 80
}
service "first" {
  group     = ["/g", "/h"]
  port      = 80
  member_id = "m"
}
service "second" {
  group     = ["/i", "/h"]
  port      = 80
  member_id = "m"
}
service "repeated" {
  group = ["/g", "/g"]
  port  = 80
}
service "presets" {
  group  = "/p"
  port   = 80
  format = "curator"
  curator {
    preset   = "sprnig"
    uri_spec = "{adress}"
    ssl_port = 70000
  }
}
service "uri" {
  group  = "/u"
  port   = 80
  format = "curator"
  curator { uri_spec = "{adress}" }
}
service "portless" {
  group  = "/n"
  port   = 80
  format = "curator"
  curator { no_port = true }
}
service "unused" {
  group = "/o"
  port  = 80
  curator { preset = "spring" }
}
