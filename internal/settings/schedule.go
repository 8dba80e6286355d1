package settings

import "github.com/zkagent/zkagent/agent"

// checkSchedule checks a cron line.
func checkSchedule(line string) error {
	_, err := agent.ParseSchedule(line, "check")
	return err
}
