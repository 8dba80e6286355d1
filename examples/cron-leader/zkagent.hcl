# A job that runs every night on one host of many, and on no other: the host
# that leads the election.
#
#   DIR=/var/lib/zkagent ZK=zk1:2181 JOB=/usr/lib/maint/compact zkagent run --config examples/cron-leader
#
# The job gets ZKAGENT_FENCE, a number that grows with every leader. What it
# writes to should refuse a smaller number than the greatest it has seen: a host
# that was stopped for an hour and wakes up in the middle of the job may believe
# for a moment that it still leads. When leadership is lost, the job is ended
# before anybody else can have it.

agent {
  id        = env("ID", hostname())
  state_dir = "${env("DIR")}/state"
}

admin { socket = "${env("DIR")}/zkagent.sock" }

zookeeper {
  servers         = [env("ZK", "127.0.0.1:2181")]
  session_timeout = "6s"
}

election "nightly" { path = "/elections/nightly" }

hook "job" {
  leader   = election.nightly
  schedule = env("SCHEDULE", "~ 3 * * *") # at a minute between 3 and 4 that zkagent chooses
  command  = [env("JOB")]
  timeout  = "30m"
  overlap  = "forbid" # never two at once
  catch_up = "latest" # after missed nights it runs once
}
