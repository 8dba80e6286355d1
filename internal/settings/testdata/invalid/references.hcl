zookeeper { servers = ["zk1"] }
config "web" { path = "/config/web" }
config "web.v2" { path = "/config/web2" }
election "nightly" { path = "/elections/nightly" }
hook "a" {
  leader    = election.nightli
  on_change = [config.wep, config["web.v2"], service.x, config.web, config.web, "config.web", config.web.path]
  command   = ["true"]
}
hook "b" {
  on_change = config.web
  leader    = "nightly"
  command   = ["true"]
}
hook "c" {
  on_elected = true
  command    = ["true"]
}
hook "d" {
  command = ["true"]
}
template "t" {
  contents    = "{{ key \"wep/x\" }}"
  destination = "/tmp/t"
  for_each    = election.nightly
}
exec "app" {
  command  = ["app"]
  env_from = { A = "web/a", B = "wep/b", C = "web" }
  after    = [template.t, template.u]
}
exec "other" {
  command = ["app"]
}
