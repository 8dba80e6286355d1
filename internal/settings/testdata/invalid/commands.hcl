zookeeper { servers = ["zk1"] }
template "t" {
  contents    = "x"
  destination = "/tmp/t"
  wait {
    min = "5s"
    max = "1s"
  }
  check {
    command = ["nginx", "-t", "-c", stagd]
    at      = "stage"
    timeout = "0s"
  }
  reload {
    command      = "systemctl reload nginx"
    on_failure   = "ignore"
    retry        = 100
    min_interval = "-1s"
    rolling {
      permits    = "0%"
      post_check = []
    }
    verify { timeout = "1s" }
  }
}
hook "h" {
  schedule = "99 * * * *"
  command  = [staged]
  overlap  = "queue"
  timeout  = "1w"
}
hook "i" {
  schedule = "0 0 31 2 *"
  command  = ["", "x"]
}
hook "j" {
  schedule = "@daily"
  command  = ["run", ["nested"]]
}
hook "k" {
  schedule = "@daily"
}
exec "e" {
  command   = ["app"]
  signal    = "SIGWHAT"
  on_change = "reload"
}
