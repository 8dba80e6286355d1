zookeeper { servers = ["zk1"] }
config "web" { path = "/web" }
exec "app" {
  command   = ["app"]
  env_from  = { BASH_ENV = "web/a", LD_PRELOAD = "web/b", PATH = "web/c", TAR_OPTIONS = "web/d", GREETING = "web/e" }
  allow_env = ["PATH", "SHELL"]
}
