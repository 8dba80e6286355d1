agent { id = "a1" }
zookeeper {
  servers = ["zk1.example.org"]
  acl     = ["sasl:zkagent/host1@EXAMPLE.ORG:cdrwa", "x509:CN=reader,O=Example:r", "world:anyone:r"]
  auth "sasl" {
    mechanism = "GSSAPI"
    principal = "zkagent/_HOST@EXAMPLE.ORG"
    keytab    = "/etc/zkagent/keytab"
    service   = "zookeeper"
    krb5_conf = "/etc/krb5.conf"
  }
}
