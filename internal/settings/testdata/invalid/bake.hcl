zookeeper { servers = ["zk1:2181"] }
config "none" {
  path = "/config/none"
  rollout {
    bake_check { interval = "5s" }
  }
}
config "both" {
  path = "/config/both"
  rollout {
    bake_check {
      command = ["true"]
      http    = "http://127.0.0.1/"
    }
  }
}
config "wrong" {
  path = "/config/wrong"
  rollout {
    bake_check {
      command = []
    }
  }
}
