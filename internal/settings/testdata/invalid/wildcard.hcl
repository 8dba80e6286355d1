# Every address is refused, allowed or not: the listener has no TLS.
http {
  listen       = "0.0.0.0:8558"
  allow_remote = true
}
