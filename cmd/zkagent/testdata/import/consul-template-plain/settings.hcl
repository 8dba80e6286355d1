log_level = "info"
consul {
  address = "127.0.0.1:8500"
}
template {
  source          = "app.ctmpl"
  destination     = "/etc/app.conf"
  command         = "systemctl reload app"
  perms           = 0600
  left_delimiter  = "[["
  right_delimiter = "]]"
}
