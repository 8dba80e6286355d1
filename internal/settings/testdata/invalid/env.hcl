zookeeper { servers = ["zk1"] }
agent {
  env      = { "A=B" = "1" }
  pass_env = ["[x", "APP_*"]
}
config "web" { path = "/web" }
hook "h" {
  schedule = "@daily"
  command  = ["true"]
  env      = { ZKAGENT_TERM = "7" }
}
exec "app" {
  command     = ["app"]
  env         = { PORT = "web/port" }
  kill_signal = "STOPP"
}
