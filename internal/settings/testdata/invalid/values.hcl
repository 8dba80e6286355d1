agent {
  id      = "a/b"
  on_stop = "leav"
  splay   = "10"
}
http { listen = "192.0.2.5:80" }
log {
  level  = "verbose"
  format = 3
}
admin { socket = "/run/0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890/zkagent.sock" }
zookeeper {
  servers         = ["zk1:2181/chroot", "zk2:port"]
  chroot          = "prod"
  session_timeout = "1ms"
  acl             = ["world:everybody:r", "auth::z", "digest:ann:secret:cdrwa"]
  auth "digest" { credential = "nocolon" }
  tls { cert_file = "/nonexistent/cert.pem" }
}
config "root" { path = "/" }
config "rel" { path = "config/web" }
group "g" {
  path     = "/g"
  format   = "nerv"
  on_empty = "ignore"
  allow    = ["10.0.0.1/8", "everywhere"]
  guard {
    max_loss    = 30
    min_members = 0
    window      = "-1s"
    hold        = "forever"
  }
}
election "e" {
  path    = "/e//f"
  dialect = "curater"
}
group "h" {
  path = "/h"
  guard { min_members = 1.5 }
}
