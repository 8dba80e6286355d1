template "a" {
  contents    = "a"
  destination = "/tmp/a"
  for_eech    = config.web
  delimitrs   = ["[[", "]]"]
  relod {
    command = ["true"]
  }
}

bundle "b" {
  splai = "1s"
  template "b" {
    contents    = "b"
    destinatoin = "/tmp/b"
    reload {
      command = ["true"]
    }
  }
  check {
    command = ["true"]
    evn     = {}
  }
  check {
    command = ["true"]
  }
}

service "c" {
  port = 80
  check "tcp" {
    address = "127.0.0.1:80"
    intervall = "1s"
    riese   = 1
  }
}
