package main

import "os"

// unitCredentials is where systemd keeps the credentials of the agent's unit
// while it runs. The user of the agent and root can read them.
const unitCredentials = "/run/credentials/zkagent.service"

// unitEnv is [os.LookupEnv], but a command outside of the unit also sees the
// credentials of the unit, if its user may read them. So "zkagent doctor" and the
// fleet commands work with the settings of the agent.
func unitEnv(name string) (string, bool) {
	v, ok := os.LookupEnv(name)
	if ok || name != "CREDENTIALS_DIRECTORY" {
		return v, ok
	}
	if _, err := os.ReadDir(unitCredentials); err != nil {
		return "", false
	}
	return unitCredentials, true
}
