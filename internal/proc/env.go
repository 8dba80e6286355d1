package proc

import "os"

// defaultPath is used when this process has no PATH of its own.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// CleanEnv is the environment of a command: PATH, HOME and LANG of this
// process, then the given variables. Nothing else is passed on: no
// NOTIFY_SOCKET, no credentials directory, no secrets.
func CleanEnv(extra []string) []string {
	path := os.Getenv("PATH")
	if path == "" {
		path = defaultPath
	}
	home := os.Getenv("HOME")
	if home == "" {
		home = "/"
	}
	lang := os.Getenv("LANG")
	if lang == "" {
		lang = "C.UTF-8"
	}
	return append([]string{"PATH=" + path, "HOME=" + home, "LANG=" + lang}, extra...)
}
