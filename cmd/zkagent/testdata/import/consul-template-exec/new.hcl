consul {
  address = "127.0.0.1:8500"
  token   = "abc"
}
template {
  contents = <<-EOF
    # a
    listen {{ key "svc/port" }};
    {{ range service "db.primary@dc2~_agent?ns=x" }}{{ .ServiceMeta.version }} {{ .ID }} {{ .Status }}{{ end }}
  EOF
  destination = "/etc/svc.conf"
  error_fatal = false
  exec {
    command = ["systemctl", "reload", "svc"]
  }
}
exec {
  command = "/usr/bin/svc --flag 'a b'"
}
