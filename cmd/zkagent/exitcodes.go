package main

// exitCodes describes the exit codes, for the man page and the reference.
var exitCodes = []struct {
	code int
	text string
	when string
}{
	{exitOK, "done; no difference", "Everything worked."},
	{exitFailed, "failed or refused; with --exit-code: there is a difference", "The command was understood and did not succeed: a check refused a file, a config is frozen, a key does not exist, a reload failed."},
	{exitUsage, "wrong usage", "Unknown commands or flags, missing arguments, a question without a terminal and without `--yes`."},
	{exitUnavailable, "ZooKeeper or the agent's socket cannot be reached", "No server answered in time, the session expired meanwhile, or no agent runs on this host."},
	{exitSoftware, "failed, where 1 means a difference", "Failures of commands that were given `--exit-code`."},
	{exitTemporary, "not obtained in time, or another version is in use", "A lock, barrier or queue item was not obtained; `--check-version` did not match. Trying again later makes sense."},
	{exitLost, "what was held was lost while the command ran", "`lock` and `elect`: the session or the znode was lost; the command was ended before another could begin."},
	{exitPermission, "not permitted: ACL, socket mode, file mode", "An ACL of ZooKeeper, the mode of the agent's socket, or of a file."},
	{exitConfig, "the settings are invalid", "Of every command that reads settings, `validate` and `run` included. The unit has `RestartPreventExitStatus=78`, so that systemd does not start an agent again and again that cannot start."},
}
