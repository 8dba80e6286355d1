agent { id = hostnme() }
zookeeper {
  servers = [config.web]
  chroot  = file("no/such/file")
  auth "digest" { credential = credential("../passwd") }
  auth "digest" { credential = credential("zk") }
}
config "web" { path = null }
service "s" {
  group  = "/g"
  port   = "many"
  labels = ["a"]
}
