hook "spread" {
  schedule = "CRON_TZ=Europe/Berlin ~ 3 * * *"
  leader   = election.e
  command  = ["/bin/true"]
  jitter   = "1m"
  retries  = 3
  overlap  = "replace"
}
hook "led" {
  on_change = [election.e]
  command   = ["/bin/true"]
}
exec "app" {
  command      = ["app", "--flag"]
  env          = { MODE = "quiet" }
  pass_env     = ["DATABASE_URL", "APP_*"]
  env_from     = { DB = "web.v2/db/url" }
  kill_signal  = "QUIT"
  after        = [template.verify]
  on_change    = "signal"
  signal       = "USR1"
  kill_timeout = "10s"
}
