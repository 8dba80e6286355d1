agent {
  id = "x
}
config "a" {
  path = "/a"
