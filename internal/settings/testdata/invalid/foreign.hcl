template "a" {
  contents = "x"
  destination = "/tmp/x"
  perms = "0644"
  user = "x"
  command = "x"
  ca_cert = "x"
}
config "web" { prefix = "/x" }
vault { }
