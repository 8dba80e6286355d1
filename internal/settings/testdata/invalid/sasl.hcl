zookeeper {
  servers = ["zk1"]
  auth "sasl" {}
  auth "sasl" {
    mechanism  = "DIGEST-MD5"
    credential = "nocolon"
    keytab     = "k"
  }
  auth "sasl" {
    mechanism  = "GSSAPI"
    credential = "a:b"
    keytab     = "nosuch.keytab"
  }
  auth "sasl" {
    mechanism = "SCRAM"
  }
  auth "digest" {
    keytab = "k"
  }
}
