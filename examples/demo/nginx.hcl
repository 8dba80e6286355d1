# Serves the files of examples/quickstart through nginx:
#
#   zkagent dev --hooks run examples/quickstart examples/demo
#
# The agent starts nginx once both files are rendered, tells it by a signal
# when one of them has changed, and ends it when it ends itself.

template "nginx" {
  source      = "nginx.conf.tmpl"
  destination = "${env("ZKAGENT_DEV_DIR", "/tmp/zkagent-quickstart")}/nginx.conf"
  allow       = ["env"]
}

exec "nginx" {
  command = [
    "nginx", "-p", env("ZKAGENT_DEV_DIR", "/tmp/zkagent-quickstart"), "-e", "stderr", "-c", "nginx.conf",
    "-g", "daemon off;",
  ]
  on_change = "signal"
  signal    = "SIGHUP"
}
