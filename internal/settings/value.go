package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/session"
)

// parseDuration parses a duration such as "10s", "1h30m" or "2d". A number
// without a unit is refused: readers disagree on which one is meant.
func parseDuration(text string) (time.Duration, error) {
	text = strings.TrimSpace(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseFloat(days, 64); err == nil && !math.IsNaN(n) && math.Abs(n) < 36500 {
			return time.Duration(n * 24 * float64(time.Hour)), nil
		}
	} else if d, err := time.ParseDuration(text); err == nil {
		return d, nil
	} else if _, err := strconv.ParseFloat(text, 64); err == nil {
		return 0, fmt.Errorf("%q has no unit; write \"%ss\" for seconds", text, text)
	}
	return 0, fmt.Errorf("%q is not a duration; write it as in \"500ms\", \"10s\", \"5m\", \"2h\" or \"1d\"", text)
}

// sizeUnits are the units of sizes: powers of 1024, with or without the "i".
var sizeUnits = map[string]int64{
	"": 1, "b": 1,
	"k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10,
	"m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20,
	"g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30,
}

// parseSize parses a size in bytes such as "512", "64k", "1MiB".
func parseSize(text string) (int64, error) {
	trimmed := strings.ToLower(strings.TrimSpace(text))
	unit := strings.TrimLeft(trimmed, "0123456789")
	factor, known := sizeUnits[strings.TrimSpace(unit)]
	n, err := strconv.ParseInt(strings.TrimSuffix(trimmed, unit), 10, 64)
	if err != nil || !known || n > math.MaxInt64/factor {
		return 0, fmt.Errorf("%q is not a size; write it as in \"512kB\", \"1MB\" or \"1MiB\"", text)
	}
	return n * factor, nil
}

// parseMode parses an octal file mode such as "0644".
func parseMode(text string) (fs.FileMode, error) {
	n, err := strconv.ParseUint(strings.TrimPrefix(text, "0o"), 8, 32)
	if err != nil || n > 0o7777 {
		return 0, fmt.Errorf("%q is not a file mode; write it in octal as in \"0644\"", text)
	}
	if n > 0o777 {
		return 0, fmt.Errorf("%q sets the setuid, setgid or sticky bit; only the permission bits may be set", text)
	}
	return fs.FileMode(n), nil
}

// parsePercent parses a share such as "30%" and returns it as 0.3.
func parsePercent(text string) (float64, error) {
	number, ok := strings.CutSuffix(strings.TrimSpace(text), "%")
	if !ok {
		return 0, fmt.Errorf("%q is not a share; write it as in \"30%%\"", text)
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || math.IsNaN(n) || n < 0 || n > 100 {
		return 0, fmt.Errorf("%q is not a share from 0%% to 100%%", text)
	}
	return n / 100, nil
}

func checkZnode(path string) error {
	if err := session.ValidatePath(path); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), session.ErrBadPath.Error()+": "))
	}
	return nil
}
