agent {
  idd = "x"
}

tempalte "a" {
  source = "x"
}

zookeeper {
  servers = ["zk1:2181"]
  session_timout = "10s"
}

config "web" {
  path   = "/config/web"
  layout = "versionned"
}
