log_level = "warn"
pid_file = "/run/ct.pid"
kill_signal = "SIGTERM"
max_stale = "10m"
syslog { enabled = true }
consul {
  address = "127.0.0.1:8500"
  retry { enabled = true attempts = 12 backoff = "250ms" }
}
vault { address = "https://vault:8200" renew_token = true }
deduplicate { enabled = true prefix = "ct/dedup/" }
template {
  source = "haproxy.ctmpl"
  destination = "/etc/haproxy/haproxy.cfg"
  command = "haproxy -c -f /etc/haproxy/haproxy.cfg && systemctl reload haproxy"
  command_timeout = "60s"
  perms = 0640
  user = "haproxy"
  group = "haproxy"
  error_on_missing_key = true
  wait { min = "2s" max = "10s" }
}
template {
  contents = "{{ with secret \"secret/app\" }}{{ .Data.password }}{{ end }}"
  destination = "/etc/app/secret"
  sandbox_path = "/etc"
  function_denylist = ["plugin"]
}
