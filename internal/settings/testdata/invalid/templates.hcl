zookeeper { servers = ["zk1"] }
config "web" { path = "/config/web" }
groups "all" { path = "/services" }
template "none" { destination = "/tmp/none" }
template "both" {
  source      = "missing.tmpl"
  contents    = "x"
  destination = "/tmp/both"
}
template "missing" {
  source      = "missing.tmpl"
  destination = "/tmp/missing"
}
template "syntax" {
  contents    = <<-EOT
    one
    {{ key "web/a" }
  EOT
  destination = "/tmp/syntax"
}
template "names" {
  contents    = <<-EOT
    {{ key "wep/a" }} {{ keyy "web/a" }}
  EOT
  destination = "/tmp/names"
}
template "undeclared" {
  contents    = <<-EOT
    fine
      {{ key "wep/a" }} {{ range members "none" }}{{ end }}
  EOT
  destination = "/tmp/undeclared"
}
template "env" {
  contents    = "{{ env \"HOME\" }}"
  destination = "/tmp/env"
}
template "allow" {
  contents    = "x"
  destination = "/tmp/allow"
  allow       = ["env", "net"]
  mode        = "4755"
  backup      = -1
  syntax      = "jsn"
  symlink     = "yes"
  drift       = "no"
  max_size    = "1TB"
  owner       = "nobody-of-this-name"
  group       = "no-group-of-this-name"
}
template "each" {
  contents    = "x"
  destination = "/tmp/${each.key}"
}
template "fixed" { # a warning: it may be meant
  contents    = "x"
  destination = "/tmp/fixed"
  for_each    = groups.all
}
template "dir" {
  contents    = "x"
  destination = "/tmp/"
}
template "up" {
  contents    = "x"
  destination = "/tmp/../etc/passwd"
}
bundle "empty" {}
