package settings

import "github.com/zkagent/zkagent/internal/hook"

// checkSchedule checks a cron line.
func checkSchedule(line string) error {
	_, err := hook.ParseSchedule(line, "check")
	return err
}
