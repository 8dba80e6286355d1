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
config "figures" {
  path = "/config/figures"
  rollout {
    bake_check {
      prometheus {
        url   = "http://127.0.0.1:9090"
        query = "up"
        max   = "most"
      }
    }
  }
}
config "unlimited" {
  path = "/config/unlimited"
  rollout {
    bake_check {
      prometheus {
        url   = "http://127.0.0.1:9090"
        query = "up"
      }
    }
  }
}
